"""Distribute the records of a step over ranks so that each gets its count of records, and nearly equal bytes.

Records go out longest first, in rounds of one for each rank: the longest of a round to the rank with the fewest bytes
so far. This is the longest-processing-time rule (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969) under a
cap on counts. After a full round two ranks differ by no more than before it, or than the round's longest and shortest
record do: for ranks with loads a_i <= a_j and records b_i >= b_j by (b_i - b_j) - (a_j - a_i), both terms >= 0.
"""

import numpy as np
from numpy.typing import NDArray

MASKED = -1
_FULL = np.iinfo(np.int64).max


def slice_begins(global_batch: int, size: int) -> NDArray[np.int64]:
    """First slot of each rank's slice, r*G//W, int64[W]."""
    return np.arange(size) * global_batch // size


def deal(lengths: NDArray[np.int64], steps: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Orders of the slots of some steps: rank r's records are those in its slice [r*G//W, (r+1)*G//W).

    A full step keeps its own order if that loads its most loaded rank no more than dealing does. Masked slots come
    after all records, so the numbers of real records of two ranks differ by at most one.

    Args:
        lengths: int64[s, G], bytes of each slot's record, or `MASKED`.
        steps: int64[s], the steps' numbers: equally loaded ranks take turns in being first, step by step.
        size: W, 1 to G.

    Returns int64[s, G], each row a permutation of the slots; within a slice slots ascend.
    """
    by_length = np.argsort(-lengths, axis=1, kind="stable")
    loads = np.maximum(lengths, 0)
    dealt, most = _deal_sorted(np.take_along_axis(loads, by_length, axis=1), steps, size)
    owners = np.empty_like(dealt)
    np.put_along_axis(owners, by_length, dealt, axis=1)
    begins = slice_begins(lengths.shape[1], size)
    keeps = np.add.reduceat(loads, begins, axis=1).max(axis=1) <= most
    keeps &= (lengths != MASKED).all(axis=1)
    owners[keeps] = np.repeat(np.arange(size), np.diff(begins, append=lengths.shape[1]))
    return np.argsort(owners, axis=1, kind="stable")


def _deal_sorted(
    lengths: NDArray[np.int64], steps: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rank int64[s, G] that gets each record of descending lengths, and each step's largest load int64[s]."""
    count, global_batch = lengths.shape
    rows = np.arange(count)[:, None]
    # Columns are ranks turned by the step's number, so that a tie does not favour the same rank in every step.
    ranks = (np.arange(size) + steps[:, None]) % size
    loads = np.zeros((count, size), np.int64)
    owners = np.empty(lengths.shape, np.int64)
    whole = global_batch - global_batch % size
    for place in range(0, whole, size):
        columns = np.argsort(loads, axis=1, kind="stable")
        loads[rows, columns] += lengths[:, place : place + size]
        owners[:, place : place + size] = ranks[rows, columns]
    if whole < global_batch:  # one more for the ranks whose slices are longer
        longer = np.diff(slice_begins(global_batch, size), append=global_batch) > global_batch // size
        columns = np.argsort(np.where(longer[ranks], loads, _FULL), axis=1, kind="stable")[:, : global_batch - whole]
        loads[rows, columns] += lengths[:, whole:]
        owners[:, whole:] = ranks[rows, columns]
    return owners, loads.max(axis=1)
