"""Which workers form the worlds of an elastic job: who goes on after a loss, who joins, and who leaves.

All workers of a world that has ended come back and wait (`hvdtrain.world_channel`). When the last of them is there,
they form the next one, with those that were started meanwhile. A worker that does not come back in time is killed.
They do the same when one is lost while a world is being formed: nobody waits for it there. What this cannot mend, a
worker that is lost before the first world was complete, ends the start as in any other job.
After a request to stop, those that are left after a loss form one more world, which saves a checkpoint and ends.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import RESUMABLE
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.supervisor.diagnosis import USAGE, cause_in, report
from hvdtrain.launch.supervisor.newcomers import Departures, ElasticLauncher, Newcomers
from hvdtrain.launch.supervisor.restarts import Losses
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.topology.launcher_variables import RESTART_CAUSE_VARIABLE, RESTART_CAUSES_VARIABLE
from hvdtrain.world_channel import THREADS_VARIABLE, WORLD_VARIABLE

_FAILED_STARTS = 3  # new workers that fail one after the other: then those that are too few without one wait no longer


@dataclass(eq=False)
class Elastic:
    """One start of an elastic job. The first world's workers are in the order of their ranks, which are their numbers;
    further ones are added. `earlier` losses were mended before; `gave_up` tells why no further world can be formed."""

    may_be_alone: ClassVar = True
    job: JobSpec
    workers: list[WorkerState]
    launcher: ElasticLauncher
    say: Callable[[str], None]
    earlier: int = 0
    gave_up: str = ""
    _world: int = 1
    _waiting: set[int] = field(default_factory=set)  # members that wait for a world
    _gather_until: float | None = None
    _few_since: float | None = None  # all members wait, and too few are left
    _leave_code: int | None = None  # once no further world is to be
    _changes: bool = False  # the members were told to come back
    _trains: bool = False  # the members have restored the state, and do updates
    _is_fixed: bool = False
    _threads: str | None = None  # with how many all workers are to compute

    def __post_init__(self) -> None:
        self._members = list(range(len(self.workers)))
        self._size = len(self.workers)  # of the present world
        self.departures = Departures(self.launcher.kill)
        self._newcomers = Newcomers(self.job, self.workers, self.launcher, self.departures, self.say)
        self.losses = Losses(self.job.max_restarts, self.earlier)
        self._least, self._most = self.job.world_sizes
        self._wanted = self._room = len(self.workers)

    def goes_on_without(self, number: int, mendable: bool) -> bool:
        """Whether the others go on after its end. `mendable`: a world was complete once, and nothing ends the job."""
        end, was_killed = self.workers[number].end, self.departures.was_killed(number)
        self._waiting.discard(number)
        self.departures.ended(number)
        if number not in self._members:
            self.workers[number].was_replaced = True
            self._newcomers.ended(number, len(self._members))
            return True
        if end is None or not (end.failed or was_killed):
            self._finish(0)
            return False
        others = [member for member in self._members if member != number]
        mendable = mendable and self._leave_code is None and not self._is_fixed and end.code not in (USAGE, RESUMABLE)
        if not (mendable and others and self.losses.is_affordable):
            if was_killed:  # which by itself is not a failure
                self.gave_up = f"hvdtrain launch: rank {self.workers[number].rank} did not come back after a loss."
            self._finish(RESUMABLE if self.losses.is_stopping else 0)
            return False
        self._members = others
        self._lost(number)
        return True

    def hear(self, number: int, message: Mapping[str, Any]) -> None:
        """Take what a worker says (`hvdtrain.world_channel`)."""
        if isinstance(message.get("ready"), int):
            self.ready(number, message["ready"])
        elif "trains" in message:
            self._trains = self._trains or message["trains"] == self._world
            self._threads = self._threads or message.get("threads")
        elif "fixed" in message:
            self._is_fixed = True

    def ready(self, number: int, world: int) -> None:
        """A worker has left `world`, and waits for the next one."""
        if self._leave_code is not None:
            self._let_leave([number], self._leave_code)
        elif number in self._newcomers:
            self._newcomers.is_ready(number)
        elif number in self._members and world == self._world:
            self._waiting.add(number)
            if self._gather_until is None and not self._changes:  # it could not reach another one
                self._end_world()
            self._gather()

    def stop(self) -> None:
        """The job was asked to stop: nobody joins any more. The members know it, and end when they have saved."""
        self.losses.is_stopping, self._least = True, 1
        self._newcomers.dismiss(list(self._newcomers))

    @property
    def size(self) -> int:
        """Of the newest world, the workers that were lost of it included."""
        return self._size

    @property
    def gathers(self) -> bool:
        """Whether a world has ended, and its members are waited for."""
        return self._gather_until is not None

    @property
    def server(self) -> RendezvousServer:
        return self.launcher.server

    @property
    def deadline(self) -> float | None:
        """When `act` is to be called at the latest."""
        if self._leave_code is not None or self._is_fixed:
            return None
        times = [self._gather_until, self.launcher.look_at, self._newcomers.deadline]
        if self._gather_until is not None and self.launcher.safe_at > time.monotonic():
            times.append(self.launcher.safe_at)
        if self._few_since is not None:
            times.append(self._few_since + self.job.start_timeout)
        return min((at for at in times if at is not None), default=None)

    def act(self, connected: bool) -> bool:
        """Do what is due; whether a world was formed. `connected`: whether the last one was formed completely."""
        if self._leave_code is not None or self._is_fixed:
            return False
        self._newcomers.dismiss_late()
        self._kill_the_late()
        self._room = self.launcher.places()
        self._wanted = max(self._least, min(self._room, self._most))
        placed = self.launcher.placed([*self._members, *self._newcomers])
        self._newcomers.dismiss([number for number in self._newcomers if number not in placed])
        if self._gather_until is not None:
            return self._form()
        if connected and not self.losses.is_stopping:
            if self._trains:  # else the imports of further ones would keep these from a processor
                self._fill()
            self._call_together()
        return False

    def _lost(self, number: int) -> None:
        worker = self.workers[number]
        worker.was_replaced = True
        message = report(worker, self._size, in_full=False)
        if not self.losses.cause:
            message += f"\nhvdtrain launch: {self.losses.begin(cause_in(message))}, by the workers that are left."
        if worker.computes_wrongly:
            left_out = f"{worker.host} is left out from now on, if enough other places are left"
            message += f"\nhvdtrain launch: {left_out if worker.host else 'no further worker is started in its place'}."
            self._newcomers.dismiss([n for n in self._newcomers if self.workers[n].host == worker.host])
        self.say(message)
        self._end_world()
        self._gather()

    def _end_world(self) -> None:
        """Let nobody wait for a worker that is lost or has gone, be it to train or to form the world."""
        self.server.abandon()
        for member in self._members:
            self.launcher.tell(member, {"over": self._world})

    def _gather(self) -> None:
        """The world has ended, perhaps before it was complete: wait for all of its members."""
        if self._gather_until is None:
            self._gather_until = time.monotonic() + self.job.grace

    def _kill_the_late(self) -> None:
        if self._gather_until is not None and time.monotonic() >= self._gather_until:
            for member in self._members:
                if member not in self._waiting:
                    self.departures.kill(member)
            self._gather_until = time.monotonic() + self.job.grace

    def _form(self) -> bool:
        if not set(self._members) <= self._waiting or time.monotonic() < self.launcher.safe_at:
            return False
        if self.losses.is_stopping and self._changes and not self.losses.cause:
            self._finish(RESUMABLE)  # they have saved for the change
            return False
        there = [*self._members, *self._newcomers.ready]
        if len(there) < self._least:
            self._await_enough(len(there))
            return False
        self._few_since = None
        if not (self._changes or self.losses.cause) and not self._mends_unexplained():
            return False
        self._open(self._chosen(there), there)
        return True

    def _chosen(self, there: Sequence[int]) -> list[int]:
        """Who of them forms the next world: who has a place; others only where too few are left without them."""
        placed = self.launcher.placed(there)[: self._wanted]
        others = [number for number in there if number not in placed]
        chosen = {*placed, *others[: max(0, self._least - len(placed))]}
        return [number for number in there if number in chosen]

    def _open(self, chosen: list[int], there: Sequence[int]) -> None:
        self._world += 1
        made = self.launcher.open_world(chosen, self.losses.restarts)
        surplus = [number for number in there if number not in chosen]
        for number in surplus:
            self.workers[number].was_replaced = True
        self._let_leave(surplus, 0)
        for rank, (number, variables) in enumerate(zip(chosen, made, strict=True)):
            self.workers[number].rank = rank
            causes = {
                RESTART_CAUSE_VARIABLE: self.losses.cause or None,
                RESTART_CAUSES_VARIABLE: "\n".join(self.losses.causes) or None,
            }
            more = {WORLD_VARIABLE: str(self._world), THREADS_VARIABLE: self._threads, **causes}
            self.launcher.tell(number, {"variables": {**variables, **more}})
        joined = self._newcomers.joined(chosen)
        self._newcomers.remove(surplus)
        self.losses.end()
        self._members, self._gather_until, self._changes, self._trains = chosen, None, False, False
        self._size = len(chosen)
        self._waiting.clear()
        verb = "trains on" if len(chosen) == 1 else "train on"
        self.say(f"hvdtrain launch: {_counted(len(chosen))} {verb}{f', of which {joined} joined' if joined else ''}.")

    def _mends_unexplained(self) -> bool:
        """All members came back, although none was lost: a link that broke, or a defect that will come again."""
        if not self.losses.is_affordable:
            self.gave_up = "hvdtrain launch: the workers lost each other, and none of them has ended."
            self._finish(0)
            return False
        how = self.losses.begin("The workers lost each other, and none of them had ended.")
        self.say(f"hvdtrain launch: {self.losses.cause} {how[0].upper()}{how[1:]}, by the same workers.")
        return True

    def _await_enough(self, there: int) -> None:
        now = time.monotonic()
        self._few_since = self._few_since or now
        is_hopeless = not self._newcomers and (self._room <= there or self._newcomers.failures >= _FAILED_STARTS)
        if is_hopeless or now >= self._few_since + self.job.start_timeout:
            left = f"{_counted(there)} {'is' if there == 1 else 'are'} left"
            self.gave_up = f"hvdtrain launch: {left}, and {self.job.world_sizes[0]} are needed."
            self._finish(0)
        else:
            self._fill()

    def _fill(self) -> None:
        self._newcomers.fill(min(self._wanted, self._room) - len(self.launcher.placed(self._members)))

    def _call_together(self) -> None:
        """Ask the members to come back where others wait to join them, or some of them have no place any more."""
        if not self._changes and (self._newcomers.all_ready or self._chosen(self._members) != self._members):
            self._changes = True
            for member in self._members:
                self.launcher.tell(member, {"change": True})

    def _let_leave(self, numbers: Sequence[int], code: int) -> None:
        for number in numbers:
            self.launcher.tell(number, {"leave": code})
            self.departures.expect(number, self.job.grace)

    def _finish(self, code: int) -> None:
        if self._leave_code is None:
            self._leave_code = code
            self._gather_until = None
            self._let_leave(sorted(self._waiting), code)
            self._newcomers.dismiss(list(self._newcomers))


class FixedWorkers:
    """The `Elastic` of a job whose workers stay the same: a loss ends all of them."""

    gave_up = ""
    may_be_alone = gathers = False
    size: int | None = None  # of all workers
    deadline: float | None = None
    server: RendezvousServer | None = None
    losses = Losses(most=0, restarts=0)
    departures = Departures(kill=lambda _number: None)

    def hear(self, _number: int, _message: object) -> None: ...

    def stop(self) -> None: ...

    def goes_on_without(self, _number: int, _mendable: bool) -> bool:
        return False

    def act(self, _connected: bool) -> bool:
        return False


def _counted(workers: int) -> str:
    return f"{workers} worker{'s' if workers != 1 else ''}"
