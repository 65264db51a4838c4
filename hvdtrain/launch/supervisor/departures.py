"""Workers that are to end while the job goes on: each has a deadline, then it is killed, then it is given up."""

import time
from collections.abc import Callable

KILLED_SECONDS = 10.0
"""After SIGKILL: who still runs waits in the kernel."""


class Departures:
    """Args:
    kill: sends SIGKILL to a worker.
    """

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
