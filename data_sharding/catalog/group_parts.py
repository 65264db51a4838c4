"""Parts of a catalog in which groups of records stay together: patients, speakers, scenes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.permutation import Permutation

Labels = NDArray[np.int64] | None
"""Of each record; None: parts are not stratified."""


_NEAR = 0.1  # of what the first part should have


def split_groups(groups: NDArray[Any], seed: int, fraction: float, labels: Labels) -> NDArray[np.bool_]:
    """bool[N], the first part, close to the fraction (of each label), never all: groups in a random order, or where
    large ones would miss it by more than a tenth, those that fit."""
    numbers, sizes, order = _shuffled(groups, seed)
    wanted, shares = fraction * len(numbers), np.array([fraction, 1 - fraction])

    def distance(part: NDArray[np.bool_]) -> float:
        return abs(int(part.sum()) - wanted) if 0 < part.sum() < len(part) else np.inf

    if labels is None:
        first = np.isin(numbers, _first_ones(sizes, order, wanted))
    else:
        first = _by_label(numbers, sizes, order, labels, shares)[numbers] == 0
    if distance(first) <= _NEAR * wanted:
        return first
    parts = [first, np.isin(numbers, _fitting(sizes, order, wanted))]
    if labels is not None:
        ahead: NDArray[np.bool_] = _by_label(numbers, sizes, order, labels, shares, looks_ahead=True)[numbers] == 0
        if distance(ahead) <= _NEAR * wanted:
            return ahead
        parts.insert(1, ahead)
    return min(parts, key=distance)


def _first_ones(sizes: NDArray[np.int64], order: NDArray[np.int64], wanted: float) -> NDArray[np.int64]:
    reached = np.cumsum(sizes[order])[: max(len(sizes) - 1, 1)]
    return order[: 1 + int(np.argmin(np.abs(reached - wanted)))]


def _fitting(sizes: NDArray[np.int64], order: NDArray[np.int64], wanted: float) -> list[int]:
    """Groups in their order for which there is room; the smallest one where there is room for none."""
    taken, filled = list[int](), 0
    for group in order.tolist():
        if filled + sizes[group] <= wanted:
            taken.append(group)
            filled += int(sizes[group])
    return taken or [int(order[np.argmin(sizes[order])])]


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
    looks_ahead: bool = False,
) -> NDArray[np.int64]:
    """int64[groups], the part of each: large groups first, each into the part that has least of what it should have of
    the group's labels; of equal ones into the emptier one.

    Args: `shares`: of each part in all records; `looks_ahead`: what a part would have with the group is compared.
    """
    _, labels, of_label = np.unique(labels, return_inverse=True, return_counts=True)
    records = np.argsort(numbers, kind="stable")
    ends = np.cumsum(sizes)
    wanted = np.outer(shares, of_label)
    filled, part_of = np.zeros_like(wanted), np.empty(len(sizes), np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")].tolist():
        here = labels.reshape(-1)[records[ends[group] - sizes[group] : ends[group]]]
        more = np.bincount(here, minlength=wanted.shape[1]) if looks_ahead else np.zeros(wanted.shape[1])
        rate = ((filled + more)[:, here] / wanted[:, here]).mean(axis=1)
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
