"""Which workers form the worlds of an elastic job: who goes on after a loss, who joins, and who leaves.

All workers of a world that has ended come back and wait (`hvdtrain.world_channel`). When the last of them is there,
they form the next one, with those that were started meanwhile. A worker that does not come back in time is killed.
What this cannot mend, a worker that is lost while a world is being formed for one, ends the start as in any other job.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import RESUMABLE
from hvdtrain.launch.supervisor.diagnosis import USAGE, cause_in, report
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.topology.launcher_variables import RESTART_CAUSE_VARIABLE
from hvdtrain.world_channel import WORLD_VARIABLE

Variables = Mapping[str, str | None]

_FAILED_STARTS = 3
"""New workers that fail one after the other before they have joined: then no further one is started."""


class ElasticLauncher(Protocol):
    """What an elastic job needs of its launcher. Workers have numbers, which stay; ranks are of one world."""

    @property
    def safe_at(self) -> float:
        """Before this time of the monotonic clock, workers that were given up may still run."""

    @property
    def look_at(self) -> float | None:
        """When `places` is to be asked again at the latest."""

    def start(self, number: int) -> str:
        """Start one more worker, which waits for its first world; returns its host, "" where all are on this one."""

    server: RendezvousServer
    """Where the workers of the newest world meet."""

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        """Let these workers meet, in this order of ranks; the variables of each."""

    def places(self) -> int:
        """For how many workers there is room now."""

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        """Send an order to a worker."""

    def kill(self, number: int) -> None:
        """SIGKILL a worker."""


@dataclass(frozen=True, slots=True)
class ElasticLimits:
    """Attributes:
    least, most: workers of a world.
    restarts: how often a loss may be mended.
    grace: seconds in which the others must come back after a loss.
    start_timeout: seconds in which a worker that was started must be able to join, where too few are left without it.
    """

    least: int
    most: int
    restarts: int
    grace: float
    start_timeout: float


@dataclass(eq=False)
class Elastic:
    """One start of an elastic job.

    Args:
        workers: the first world's, in the order of their ranks, which are their numbers; further ones are added.
        say: prints a line.
        restarts: losses that were mended before.

    Attributes:
        gave_up: why no further world can be formed, once none can.
    """

    limits: ElasticLimits
    workers: list[WorkerState]
    launcher: ElasticLauncher
    say: Callable[[str], None]
    restarts: int = 0
    gave_up: str = ""
    _world: int = 1
    _cause: str = ""
    _waiting: set[int] = field(default_factory=set)  # members and newcomers that wait for a world
    _newcomers: set[int] = field(default_factory=set)  # that were started, and are in no world yet
    _killed: set[int] = field(default_factory=set)
    _gather_until: float | None = None
    _few_since: float | None = None  # all members wait, and too few are left
    _leave_code: int | None = None  # once no further world is to be

    def __post_init__(self) -> None:
        self._restarts_before = self.restarts
        self._members = list(range(len(self.workers)))
        self._changes = False  # the members were told to come back
        self._starts_more = True
        self._failed_starts = 0  # since a worker has joined
        self._wanted = self._room = len(self.workers)

    @property
    def mended(self) -> int:
        """Losses of this start after which its workers went on."""
        return self.restarts - self._restarts_before

    def goes_on_without(self, number: int, mendable: bool) -> bool:
        """Take note of a worker's end; whether the others go on.

        Args:
            mendable: whether the world was formed completely, and nothing else ends the job.
        """
        end = self.workers[number].end
        self._waiting.discard(number)
        if number in self._newcomers:
            self._newcomers.discard(number)
            return self._without_newcomer(number)
        if number not in self._members:
            self.workers[number].was_replaced = True  # it was told to leave
            return True
        if end is None or not (end.failed or number in self._killed):
            self._finish(0)
            return False
        others = [member for member in self._members if member != number]
        mendable = mendable and self._leave_code is None and end.code not in (USAGE, RESUMABLE)
        affordable = bool(self._cause) or self.restarts < self.limits.restarts  # a world is lost once
        if not (mendable and others and affordable):
            if number in self._killed:  # which by itself is no failure
                self.gave_up = f"hvdtrain launch: rank {self.workers[number].rank} did not come back after a loss."
            self._finish(0)
            return False
        self._members = others
        self._lost(number)
        return True

    def ready(self, number: int, world: int) -> None:
        """A worker has left `world`, and waits for the next one."""
        if self._leave_code is not None:
            self.launcher.tell(number, {"leave": self._leave_code})
        elif number in self._newcomers or (number in self._members and world == self._world):
            self._waiting.add(number)
            if number in self._members:
                self._gather()

    def stop(self) -> None:
        """The job was asked to stop: who waits for a world ends."""
        self._finish(RESUMABLE)

    @property
    def deadline(self) -> float | None:
        """When `act` is to be called at the latest."""
        times = [self._gather_until, self.launcher.look_at]
        if self._gather_until is not None and self.launcher.safe_at > time.monotonic():
            times.append(self.launcher.safe_at)
        if self._leave_code is not None:
            return None
        if self._few_since is not None:
            times.append(self._few_since + self.limits.start_timeout)
        return min((at for at in times if at is not None), default=None)

    def act(self, connected: bool) -> bool:
        """Do what is due; whether a world was formed.

        Args:
            connected: whether the last one was formed completely.
        """
        if self._leave_code is not None:
            return False
        self._kill_the_late()
        self._room = self.launcher.places()
        self._wanted = max(self.limits.least, min(self._room, self.limits.most))
        if self._gather_until is not None:
            return self._form()
        if connected:
            self._fill()
            self._call_together()
        return False

    def _without_newcomer(self, number: int) -> bool:
        worker = self.workers[number]
        worker.was_replaced = True
        if worker.end is not None and worker.end.failed and self._leave_code is None:
            self._failed_starts += 1
            self.say(report(worker, len(self._members), in_full=True))
            self._starts_more = self._failed_starts < _FAILED_STARTS
        return True

    def _lost(self, number: int) -> None:
        worker = self.workers[number]
        worker.was_replaced = True
        told = report(worker, len(self._members) + 1, in_full=False)
        if not self._cause:
            self.restarts += 1
            self._cause = cause_in(told)
            told += (
                f"\nhvdtrain launch: restart {self.restarts} of {self.limits.restarts}, by the workers that are left."
            )
        self.say(told)
        for member in self._members:
            self.launcher.tell(member, {"over": self._world})
        self._gather()

    def _gather(self) -> None:
        """The world has ended: wait for all of its members."""
        if self._gather_until is None:
            self._gather_until = time.monotonic() + self.limits.grace

    def _kill_the_late(self) -> None:
        if self._gather_until is None or time.monotonic() < self._gather_until:
            return
        for member in self._members:
            if member not in self._waiting and member not in self._killed:
                self._killed.add(member)
                self.launcher.kill(member)
        self._gather_until = time.monotonic() + self.limits.grace

    def _form(self) -> bool:
        if not set(self._members) <= self._waiting or time.monotonic() < self.launcher.safe_at:
            return False
        there = [*self._members, *sorted(self._newcomers & self._waiting)]
        if len(there) < self.limits.least:
            self._await_enough(len(there))
            return False
        self._few_since = None
        if not (self._changes or self._cause) and not self._mends_unexplained():
            return False
        chosen, surplus = there[: self._wanted], there[self._wanted :]
        self._world += 1
        made = self.launcher.open_world(chosen, self.restarts)
        for number in surplus:
            self._newcomers.discard(number)
            self.launcher.tell(number, {"leave": 0})
        for rank, (number, variables) in enumerate(zip(chosen, made, strict=True)):
            self.workers[number].rank = rank
            more = {WORLD_VARIABLE: str(self._world), RESTART_CAUSE_VARIABLE: self._cause or None}
            self.launcher.tell(number, {"variables": {**variables, **more}})
        joined = len(self._newcomers & set(chosen))
        if joined:
            self._failed_starts, self._starts_more = 0, True
        self._newcomers -= set(chosen)
        self._waiting -= set(there)
        self._members, self._gather_until, self._changes, self._cause = chosen, None, False, ""
        verb = "trains on" if len(chosen) == 1 else "train on"
        self.say(f"hvdtrain launch: {_counted(len(chosen))} {verb}{f', of which {joined} joined' if joined else ''}.")
        return True

    def _mends_unexplained(self) -> bool:
        """All members came back, although none was lost: a link that broke, or a defect that will come again."""
        if self.restarts >= self.limits.restarts:
            self.gave_up = "hvdtrain launch: the workers lost each other, and none of them has ended."
            self._finish(0)
            return False
        self.restarts += 1
        self._cause = "The workers lost each other, and none of them had ended."
        self.say(
            f"hvdtrain launch: {self._cause} Restart {self.restarts} of {self.limits.restarts}, by the same workers."
        )
        return True

    def _await_enough(self, there: int) -> None:
        now = time.monotonic()
        self._few_since = self._few_since or now
        self._fill()
        if not self._newcomers or now >= self._few_since + self.limits.start_timeout:
            left = f"{_counted(there)} {'is' if there == 1 else 'are'} left"
            self.gave_up = f"hvdtrain launch: {left}, and {self.limits.least} are needed."
            self._finish(0)

    def _fill(self) -> None:
        """Start workers for places that are empty."""
        most = min(self._wanted, self._room)
        while self._starts_more and len(self._members) + len(self._newcomers) < most:
            number = len(self.workers)
            self.workers.append(WorkerState(number))
            self._newcomers.add(number)
            self.workers[number].host = self.launcher.start(number)

    def _call_together(self) -> None:
        """Ask the members to come back where others wait to join them, or they are too many."""
        join = self._newcomers & self._waiting
        if self._changes or not (len(self._members) > self._wanted or (join and join == self._newcomers)):
            return
        self._changes = True
        for member in self._members:
            self.launcher.tell(member, {"change": True})

    def _finish(self, code: int) -> None:
        if self._leave_code is None:
            self._leave_code = code
            self._gather_until = None
            for number in sorted(self._waiting):
                self.launcher.tell(number, {"leave": code})
            for number in sorted(self._newcomers - self._waiting):
                self.launcher.kill(number)  # it would come too late, and may hang


def _counted(workers: int) -> str:
    return f"{workers} worker{'s' if workers != 1 else ''}"
