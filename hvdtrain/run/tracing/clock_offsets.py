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
    return [offset(rows[0], own) for own in rows]


def offset(first: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> Offset:
    """Of one clock.

    Args:
        first: when rank 0 entered and left each of some collectives, by its clock.
        own: when the other rank did, by the clock that is looked at.
    """
    most = min(left - entered for (entered, _), (_, left) in zip(first, own, strict=True))
    least = max(entered - left for (_, left), (entered, _) in zip(first, own, strict=True))
    return Offset((least + most) / 2, abs(most - least) / 2)
