"""Parts of a catalog in which groups of records stay together: patients, speakers, scenes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.permutation import Permutation

Labels = NDArray[np.int64] | None
"""Of each record; None: parts are not stratified."""


def split_groups(groups: NDArray[Any], seed: int, fraction: float, labels: Labels) -> NDArray[np.bool_]:
    """bool[N], the first part, as close to the fraction (of each label) as groups in a random order come, never all."""
    numbers, sizes, order = _shuffled(groups, seed)
    if labels is not None:
        shares = np.array([fraction, 1 - fraction])
        first: NDArray[np.bool_] = _by_label(numbers, sizes, order, labels, shares)[numbers] == 0
        return first
    reached = np.cumsum(sizes[order])[: max(len(sizes) - 1, 1)]
    count = 1 + int(np.argmin(np.abs(reached - fraction * len(numbers))))
    return np.isin(numbers, order[:count])


def folds_of_groups(groups: NDArray[Any], seed: int, count: int, labels: Labels) -> NDArray[np.int64]:
    """int64[N], the fold of each record: large groups first, each into the fold that has fewest records (of its
    labels)."""
    numbers, sizes, order = _shuffled(groups, seed)
    if labels is not None:
        return _by_label(numbers, sizes, order, labels, np.full(count, 1 / count))[numbers]
    filled, fold_of = np.zeros(count, np.int64), np.empty(len(sizes), np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")].tolist():
        fold_of[group] = int(np.argmin(filled))
        filled[fold_of[group]] += sizes[group]
    return fold_of[numbers]


def _by_label(
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    order: NDArray[np.int64],
    labels: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> NDArray[np.int64]:
    """int64[groups], the part of each: large groups first, each into the part that has least of what it should have of
    the group's labels; of equal ones into the emptier one.

    Args: `shares`: of each part in all records.
    """
    _, labels, of_label = np.unique(labels, return_inverse=True, return_counts=True)
    records = np.argsort(numbers, kind="stable")
    ends = np.cumsum(sizes)
    wanted = np.outer(shares, of_label)
    filled, part_of = np.zeros_like(wanted), np.empty(len(sizes), np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")].tolist():
        here = labels.reshape(-1)[records[ends[group] - sizes[group] : ends[group]]]
        rate = (filled[:, here] / wanted[:, here]).mean(axis=1)
        part = int(np.lexsort((filled.sum(axis=1) / shares, np.round(rate, 9)))[0])
        np.add.at(filled[part], here, 1)
        part_of[group] = part
    return part_of


def _shuffled(groups: NDArray[Any], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each record the number of its group, int64[N]; the sizes of groups; their numbers in a random order."""
    try:
        _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    except TypeError as error:  # numpy's
        raise PlanError(
            f"The groups cannot be put in an order: {error}.",
            "Groups are told apart by sorting them.",
            "give one number or one text for each record, and no None.",
        ) from error
    return numbers.reshape(-1), sizes, Permutation(len(sizes), seed, 0)(np.arange(len(sizes)))
