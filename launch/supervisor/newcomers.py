"""Workers that were started for an elastic job and are in no world yet: how long they may take, when to try again."""

import time
from collections.abc import Iterable, Iterator

from hvdtrain.launch.supervisor.restarts import MAX_BACKOFF_SECONDS


class Newcomers:
    """The numbers of such workers.

    Args:
        start_timeout: seconds that each has to become ready.
        backoff: seconds until the next one is started after one has failed; twice as many after each further one.

    Attributes:
        failures: how many have failed one after the other since one has joined.
    """

    def __init__(self, start_timeout: float, backoff: float) -> None:
        self._start_timeout, self._backoff = start_timeout, backoff
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

    def add(self, number: int) -> None:
        """It was started."""
        self._ready_by[number] = time.monotonic() + self._start_timeout

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

    @property
    def late(self) -> list[int]:
        """Those that are not ready in time."""
        now = time.monotonic()
        return [number for number, by in self._ready_by.items() if number not in self._ready and now >= by]

    @property
    def may_start(self) -> bool:
        """Whether another one may be started now."""
        return time.monotonic() >= self._again_at

    def failed(self) -> float:
        """One of them has failed; returns the seconds until another one is started."""
        seconds = min(self._backoff * 2.0**self.failures, MAX_BACKOFF_SECONDS)
        self._again_at = time.monotonic() + seconds
        self.failures += 1
        return seconds

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
        if not self.may_start:
            times.append(self._again_at)
        return min(times, default=None)
