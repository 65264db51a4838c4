"""When something is due for all workers of a start together, and for single ones that are to end in between."""

import time
from collections.abc import Callable
from dataclasses import dataclass

KILLED_SECONDS = 10.0  # after SIGKILL: who still runs waits in the kernel


def after(seconds: float | None) -> float | None:
    """That many seconds from now, by the monotonic clock; None: never."""
    return None if seconds is None else time.monotonic() + seconds


def is_due(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


@dataclass
class Deadlines:
    """Times of the monotonic clock, None: never. By `start` all ranks must be connected, at `hold` other ranks' lines
    are held back no longer, at `kill` whoever runs is killed, at `give_up` whoever runs after that is not waited for.
    """

    start: float | None
    hold: float | None
    kill: float | None = None
    give_up: float | None = None

    @property
    def is_end_near(self) -> bool:
        return self.kill is not None or self.give_up is not None

    def seconds_to_first(self, *others: float | None) -> float | None:
        """Until the first of all these and `others`; None: there is none."""
        times = [at for at in (self.start, self.hold, self.kill, self.give_up, *others) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None


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
