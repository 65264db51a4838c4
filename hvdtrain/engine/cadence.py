"""When a checkpoint inside an epoch is due by the clock. Rank 0 decides, and the vote tells the other ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.algorithms.checkpoint_interval import FIRST_GUESS_SECONDS, young_daly


@dataclass(eq=False)
class Cadence:
    """Asks for a checkpoint whenever enough time has passed since the last one began.

    Args:
        seconds: between two checkpoints; None: as Young and Daly advise, from what checkpoints cost and `mtbf`.
        mtbf: mean seconds between failures of the job.
    """

    seconds: float | None = None
    mtbf: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._last = self.clock()  # when one has begun, or was asked for
        self._cost, self._write_seconds = FIRST_GUESS_SECONDS, 0.0

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints. They do not overlap: the disk needs `write_seconds` for each."""
        return max(self._write_seconds, young_daly(self._cost, self.mtbf) if self.seconds is None else self.seconds)

    def asks(self) -> bool:
        """Whether a checkpoint is due; true once in an interval, as what is asked for begins some steps later."""
        now = self.clock()
        due = now - self._last >= self.interval
        if due:
            self._last = now
        return due

    def began(self) -> None:
        """A checkpoint has begun, asked for or not."""
        self._last = self.clock()

    def ended(self, cost: float, write_seconds: float) -> None:
        """It is written: training waited for it for `cost` seconds, and writing took `write_seconds`."""
        self._cost, self._write_seconds = cost, write_seconds
