"""Sums over virtual workers of what is not a gradient: the same bits on any number of workers."""

from collections.abc import Sequence
from operator import add
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.algorithms.interval_sums import IntervalSums, NormTotals
from hvdtrain.algorithms.summation_tree import sum_of_subtrees
from hvdtrain.comm.communicator import Communicator

_MESSAGE_NUMBERS: Final = 2**19  # of all virtual workers together: bounds what ranks hold


def rows_of(workers: Sequence[MeasureTotals], names: Sequence[str]) -> NDArray[np.float64]:
    """A row for each virtual worker, float64[k, 2n]: total and samples of each measure, of n names."""
    rows = [[of.get(name, 0.0) for name in names for of in (each.values, each.samples)] for each in workers]
    return np.array(rows, np.float64)


def interval_of(rows: NDArray[np.float64], names: Sequence[str], norms: NormTotals | None) -> IntervalSums:
    """Args: `rows`: float64[V, 2n], those of all virtual workers in order."""
    pairs = rows.reshape(len(rows), len(names), 2)
    measures = {name: [(total, samples) for total, samples in pairs[:, n].tolist()] for n, name in enumerate(names)}
    return IntervalSums(measures, norms)


def sum_in_order(comm: Communicator, rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """The sum over all virtual workers along their tree, float64[n], on all ranks. Collective.

    Args: `rows`: float64[k, n], those of this rank's virtual workers in order.
    """
    first = comm.allgather(np.array([len(rows)], np.int64), f"{name}.workers")
    count, numbers = int(first.sum()), rows.shape[1]
    piece = max(1, _MESSAGE_NUMBERS // count)
    sums = [
        _sum(comm.allgather(np.ascontiguousarray(rows[:, begin : begin + piece]), name))
        for begin in range(0, numbers, piece)
    ]
    return np.concatenate(sums) if sums else np.empty(0)


def _sum(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Along the tree: float64[V, n] to float64[n]."""
    terms = ((range(number, number + 1), row) for number, row in enumerate(rows))
    return sum_of_subtrees(terms, len(rows), add)
