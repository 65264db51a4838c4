"""The workers of an elastic job that come and go: what it needs of its launcher for that, how long those may take that
were started and are in no world yet, when to try again, and what becomes of those that are told to leave."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.supervisor.diagnosis import report
from hvdtrain.launch.supervisor.restarts import MAX_BACKOFF_SECONDS
from hvdtrain.launch.supervisor.worker_state import WorkerState

LEAST_BACKOFF_SECONDS: Final = 1.0
KILLED_SECONDS: Final = 10.0  # after SIGKILL: who still runs waits in the kernel
Variables = Mapping[str, str | None]


class ElasticLauncher(Protocol):
    """Workers have numbers, which stay; ranks are of one world."""

    @property
    def safe_at(self) -> float:
        """Before this time of the monotonic clock, workers that were given up may still run."""

    @property
    def look_at(self) -> float | None:
        """When `places` is to be asked again at the latest."""

    def start(self, number: int) -> str:
        """Start one more worker, which waits for its first world; returns its host, "" where all are on this one."""

    server: RendezvousServer  # where the workers of the newest world meet

    def open_world(self, numbers: Sequence[int], restarts: int) -> list[Variables]:
        """Let these workers meet, in this order of ranks; the variables of each."""

    def places(self) -> int:
        """For how many workers there is room now; a worker that has computed wrongly is not replaced where it was."""

    def placed(self, numbers: Sequence[int]) -> list[int]:
        """Those of these workers, in their order, for which there is room where they are, as `places` found it."""

    def tell(self, number: int, order: Mapping[str, Any]) -> None:
        """Send an order to a worker."""

    def kill(self, number: int) -> None:
        """SIGKILL a worker."""


class Departures:
    """Workers that are told to leave: each has a deadline, then it is killed, then it is given up."""

    def __init__(self, kill: Callable[[int], None]) -> None:
        self._kill = kill
        self._leaves_by: dict[int, float] = {}
        self._killed_at: dict[int, float] = {}

    def expect(self, number: int, seconds: float) -> None:
        """It was told to leave: if it has not ended after these seconds, it is killed."""
        self._leaves_by[number] = time.monotonic() + seconds

    def kill(self, number: int) -> None:
        if number not in self._killed_at:
            self._leaves_by.pop(number, None)
            self._killed_at[number] = time.monotonic()
            self._kill(number)

    def was_killed(self, number: int) -> bool:
        return number in self._killed_at

    def ended(self, number: int) -> None:
        self._leaves_by.pop(number, None)
        self._killed_at.pop(number, None)

    @property
    def deadline(self) -> float | None:
        """When `overdue` is to be called at the latest."""
        given_up_at = [at + KILLED_SECONDS for at in self._killed_at.values()]
        return min([*self._leaves_by.values(), *given_up_at], default=None)

    def overdue(self) -> list[int]:
        """Kill those that did not leave in time; returns those that SIGKILL has not ended either, to be given up."""
        now = time.monotonic()
        for number in [number for number, at in self._leaves_by.items() if now >= at]:
            self.kill(number)
        return [number for number, at in self._killed_at.items() if now >= at + KILLED_SECONDS]


@dataclass(eq=False)
class Newcomers:
    """The numbers of such workers, which are added to `workers`; `failures`: of them in a row since one has joined."""

    job: JobSpec
    workers: list[WorkerState]
    launcher: ElasticLauncher
    departures: Departures
    say: Callable[[str], None]
    failures: int = 0
    _ready_by: dict[int, float] = field(default_factory=dict)
    _ready: set[int] = field(default_factory=set)
    _again_at: float = 0.0

    def __contains__(self, number: int) -> bool:
        return number in self._ready_by

    def __len__(self) -> int:
        return len(self._ready_by)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ready_by))

    def fill(self, places: int) -> None:
        """Start workers until there are as many as `places`, unless it is too early after a failure."""
        while self._may_start and len(self) < places:
            number = len(self.workers)
            self.workers.append(WorkerState(number))
            self._ready_by[number] = time.monotonic() + self.job.start_timeout
            self.workers[number].host = self.launcher.start(number)

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._ready_by.pop(number, None)
            self._ready.discard(number)

    def is_ready(self, number: int) -> None:
        self._ready.add(number)

    @property
    def ready(self) -> list[int]:
        return sorted(self._ready)

    @property
    def all_ready(self) -> bool:
        """Whether there are some, and no other is awaited."""
        return bool(self._ready) and len(self._ready) == len(self._ready_by)

    def ended(self, number: int, others: int) -> None:
        """A worker has ended; `others` train."""
        worker = self.workers[number]
        if number in self:
            self.remove([number])
            if worker.end is not None and worker.end.failed:
                self._failed(report(worker, others, in_full=True))

    def dismiss(self, numbers: Sequence[int]) -> None:
        """End them: they are in no world, so nothing is lost with them."""
        self.remove(numbers)
        for number in numbers:
            self.workers[number].was_replaced = True
            self.departures.kill(number)

    def dismiss_late(self) -> None:
        now, seconds = time.monotonic(), self.job.start_timeout
        for number in [number for number, by in self._ready_by.items() if number not in self._ready and now >= by]:
            worker = self.workers[number]
            self.dismiss([number])
            message = f"hvdtrain launch: a further worker (process {worker.process}{worker.on_host}) was not ready"
            self._failed(f"{message} within {seconds:g} seconds, and is ended.")

    @property
    def _may_start(self) -> bool:
        return time.monotonic() >= self._again_at

    def _failed(self, message: str) -> None:
        seconds = min(max(LEAST_BACKOFF_SECONDS, self.job.backoff) * 2.0**self.failures, MAX_BACKOFF_SECONDS)
        self._again_at = time.monotonic() + seconds
        self.failures += 1
        self.say(f"{message}\nhvdtrain launch: the others go on without it. The next one is started in {seconds:g} s.")

    def joined(self, numbers: Iterable[int]) -> int:
        """These form a world, with others; returns how many of them are new."""
        new = [number for number in numbers if number in self]
        if new:
            self.failures, self._again_at = 0, 0.0
        self.remove(new)
        return len(new)

    @property
    def deadline(self) -> float | None:
        """When the next of them is late, or another one may be started."""
        times = [by for number, by in self._ready_by.items() if number not in self._ready]
        if not self._may_start:
            times.append(self._again_at)
        return min(times, default=None)
