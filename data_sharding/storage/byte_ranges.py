"""Many small ranges of bytes from few large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Integers = Sequence[int] | NDArray[np.int64]

GAP: Final = 64 << 10
"""Ranges this near are fetched as one: the bytes between cost less than a request."""

LONGEST: Final = 8 << 20
"""A longer range is fetched in parts at the same time: one connection seldom fills a network."""


class MergedRanges(NamedTuple):
    """Disjoint ranges that cover all that was asked for.

    Attributes:
        begins: int64[m], ascending.
        ends: int64[m], exclusive.
        of: int64[k], the merged range that holds each range asked for; -1 for an empty one.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    of: NDArray[np.int64]


def merge(begins: _Integers, ends: _Integers, gap: int) -> MergedRanges:
    """Join ranges [begins[i], ends[i]), in any order, that overlap or are at most `gap` bytes apart."""
    first, last = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    of = np.full(len(first), -1, np.int64)
    order = np.argsort(first, kind="stable")
    order = order[first[order] < last[order]]
    if not order.size:
        return MergedRanges(first[:0], last[:0], of)
    ordered, reach = first[order], np.maximum.accumulate(last[order])
    opens = np.concatenate([[True], ordered[1:] > reach[:-1] + gap])
    of[order] = np.cumsum(opens) - 1
    closes = np.concatenate([opens[1:], [True]])
    return MergedRanges(ordered[opens], reach[closes], of)


def split(begin: int, end: int, longest: int) -> list[tuple[int, int]]:
    """[begin, end) in order, as ranges of at most `longest` bytes."""
    return [(at, min(at + longest, end)) for at in range(begin, end, longest)]


def cut(merged: MergedRanges, data: Sequence[bytes], begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """The bytes of each range asked for, from those of the merged ones."""
    starts = merged.begins.tolist()
    return [
        data[group][begin - starts[group] : end - starts[group]] if group >= 0 else b""
        for group, begin, end in zip(merged.of.tolist(), begins, ends, strict=True)
    ]
