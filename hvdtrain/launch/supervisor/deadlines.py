"""When something is due for all workers of a start together."""

import time
from dataclasses import dataclass


def after(seconds: float | None) -> float | None:
    """That many seconds from now, by the monotonic clock; None: never."""
    return None if seconds is None else time.monotonic() + seconds


def is_due(deadline: float | None) -> bool:
    """Whether it has come."""
    return deadline is not None and time.monotonic() >= deadline


@dataclass
class Deadlines:
    """Times of the monotonic clock; None: never.

    Attributes:
        start: all ranks must be connected.
        hold: other ranks' lines are held back no longer.
        kill: whoever still runs is killed.
        give_up: whoever runs after SIGKILL is not waited for any longer.
    """

    start: float | None
    hold: float | None
    kill: float | None = None
    give_up: float | None = None

    @property
    def is_end_near(self) -> bool:
        """Whether all workers are to end, or were killed."""
        return self.kill is not None or self.give_up is not None

    def seconds_to_first(self, *others: float | None) -> float | None:
        """Until the first of all these and `others`; None: there is none."""
        times = [at for at in (self.start, self.hold, self.kill, self.give_up, *others) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None
