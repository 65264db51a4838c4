"""Workers that were started for an elastic job and are in no world yet: how long they may take, when to try again."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from hvdtrain.launch.supervisor.departures import Departures
from hvdtrain.launch.supervisor.diagnosis import report
from hvdtrain.launch.supervisor.elastic_launcher import ElasticLauncher, ElasticLimits
from hvdtrain.launch.supervisor.restarts import MAX_BACKOFF_SECONDS
from hvdtrain.launch.supervisor.worker_state import WorkerState


class Newcomers:
    """The numbers of such workers. `failures`: how many have failed one after the other since one has joined.

    Args:
        workers: of the job, to which these are added.
        say: prints a line.
    """

    def __init__(
        self,
        limits: ElasticLimits,
        workers: list[WorkerState],
        launcher: ElasticLauncher,
        departures: Departures,
        say: Callable[[str], None],
    ) -> None:
        self._limits, self._workers, self._launcher = limits, workers, launcher
        self._departures, self._say = departures, say
        self._ready_by: dict[int, float] = {}
        self._ready: set[int] = set()
        self._again_at = 0.0
        self.failures = 0

    def __contains__(self, number: int) -> bool:
        return number in self._ready_by

    def __len__(self) -> int:
        return len(self._ready_by)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ready_by))

    def fill(self, places: int) -> None:
        """Start workers until there are as many as `places`, unless it is too early after a failure."""
        while self._may_start and len(self) < places:
            number = len(self._workers)
            self._workers.append(WorkerState(number))
            self._ready_by[number] = time.monotonic() + self._limits.start_timeout
            self._workers[number].host = self._launcher.start(number)

    def remove(self, numbers: Iterable[int]) -> None:
        """They have joined a world, or are to end."""
        for number in numbers:
            self._ready_by.pop(number, None)
            self._ready.discard(number)

    def is_ready(self, number: int) -> None:
        """It waits for its first world."""
        self._ready.add(number)

    @property
    def ready(self) -> list[int]:
        """Those that wait for their first world."""
        return sorted(self._ready)

    @property
    def all_ready(self) -> bool:
        """Whether there are some, and no other is awaited."""
        return bool(self._ready) and len(self._ready) == len(self._ready_by)

    def ended(self, number: int, others: int) -> None:
        """A worker has ended; `others` train."""
        worker = self._workers[number]
        if number in self:
            self.remove([number])
            if worker.end is not None and worker.end.failed:
                self._failed(report(worker, others, in_full=True))

    def dismiss(self, numbers: Sequence[int]) -> None:
        """End them: they are in no world, so nothing is lost with them."""
        self.remove(numbers)
        for number in numbers:
            self._workers[number].was_replaced = True
            self._departures.kill(number)

    def dismiss_late(self) -> None:
        """End those that are not ready in time."""
        now, seconds = time.monotonic(), self._limits.start_timeout
        for number in [number for number, by in self._ready_by.items() if number not in self._ready and now >= by]:
            worker = self._workers[number]
            self.dismiss([number])
            message = f"hvdtrain launch: a further worker (process {worker.process}{worker.on_host}) was not ready"
            self._failed(f"{message} within {seconds:g} seconds, and is ended.")

    @property
    def _may_start(self) -> bool:
        return time.monotonic() >= self._again_at

    def _failed(self, message: str) -> None:
        seconds = min(self._limits.backoff * 2.0**self.failures, MAX_BACKOFF_SECONDS)
        self._again_at = time.monotonic() + seconds
        self.failures += 1
        self._say(f"{message}\nhvdtrain launch: the others go on without it. The next one is started in {seconds:g} s.")

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
