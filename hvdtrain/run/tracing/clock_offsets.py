"""By how much each rank's clock is ahead of rank 0's, found by collectives, which need no connection of their own.

No rank leaves a collective before all have entered it. So a time at which rank 0 entered is before every time at which
rank r left the same collective, and the reverse: each pair of such times is a bound on the difference of the two clocks
(Marzullo and Owicki 1983; NTP intersects such intervals too). The collectives that happened to be the fastest leave the
least room between the bounds.
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hvdtrain.comm.communicator import Communicator

_ROUNDS: Final = 32


class Offset(NamedTuple):
    """Seconds by which a clock is ahead of rank 0's, and by how much that may be wrong."""

    seconds: float
    error: float


def clock_offsets(comm: Communicator) -> list[Offset]:
    """Of `time.perf_counter` of each rank. Collective; it takes some milliseconds."""
    passages = []
    for _ in range(_ROUNDS):
        entered = time.perf_counter()
        comm.barrier("hvdtrain.trace.clock")
        passages.append((entered, time.perf_counter()))
    rows = comm.allgather(np.array([passages], np.float64), "hvdtrain.trace.passages").tolist()
    return [offset(rows[0], row) for row in rows]


def offset(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Offset:
    """Of the clock of a rank that has entered and left each collective at the times `other`, and rank 0 at `first`."""
    most = min(left - entered for (entered, _), (_, left) in zip(first, other, strict=True))
    least = max(entered - left for (_, left), (entered, _) in zip(first, other, strict=True))
    return Offset((least + most) / 2, abs(most - least) / 2)
