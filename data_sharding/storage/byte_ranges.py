"""Many small ranges of bytes from few requests: ranges asked for together are merged, reads in order read ahead."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.storage.access_pattern import SMALL, AccessPattern

Range = tuple[int, int]
_Integers = Sequence[int] | NDArray[np.int64]

GAP: Final = 64 << 10
"""Ranges this near are fetched as one: the bytes between cost less than a request."""

LONGEST: Final = 8 << 20
"""A longer range is fetched in parts at the same time: one connection seldom fills a network."""

FIRST_BLOCK: Final = 256 << 10
LARGEST_BLOCK: Final = 8 << 20
_NEAR: Final = 2 << 20
"""A reader that skips less than this still counts as sequential: to skip costs a request, to read on costs bytes."""
_JUST_BEHIND: Final = 8 << 10
"""Records that are smaller than this do not leap."""


class MergedRanges(NamedTuple):
    """Disjoint ranges that cover all that was asked for."""

    begins: NDArray[np.int64]  # int64[m], ascending
    ends: NDArray[np.int64]  # int64[m], exclusive
    of: NDArray[np.int64]  # int64[k], the merged range that holds each range asked for; -1 for an empty one


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


def split(begin: int, end: int, longest: int) -> list[Range]:
    """[begin, end) in order, as ranges of at most `longest` bytes."""
    return [(at, min(at + longest, end)) for at in range(begin, end, longest)]


def cut(merged: MergedRanges, data: Sequence[bytes], begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """The bytes of each range asked for, from those of the merged ones."""
    starts = merged.begins.tolist()
    return [
        data[group][begin - starts[group] : end - starts[group]] if group >= 0 else b""
        for group, begin, end in zip(merged.of.tolist(), begins, ends, strict=True)
    ]


class ReadAhead:
    """Reads of a file through one remembered block, which grows while they are in order; safe to use from many threads.

    A reader that takes little of each block gets small ranges, if `AccessPattern` finds these to be faster.

    `fetch` returns the bytes [begin, end) of the file.
    """

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._fetch, self._size = fetch, size
        self._pattern = AccessPattern(clock)
        # One tuple, replaced as a whole: a thread sees either the old block or the new one.
        self._block: tuple[int, bytes, int] = (0, b"", FIRST_BLOCK)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end), cut at the file's end."""
        begin, end = min(begin, self._size), min(end, self._size)
        start, data, step = self._block
        stop = start + len(data)
        if start <= begin and end <= stop:
            self._pattern.note(begin, end)
            return data[begin - start : end - start]
        if end <= begin:
            return b""
        kept = data[begin - start :] if start <= begin < stop else b""
        largest = LARGEST_BLOCK if data and start <= begin <= stop + _NEAR else FIRST_BLOCK
        is_small = bool(data) and self._pattern.wants_small(step, largest, begin > stop + _JUST_BEHIND)
        if not is_small:
            step = min(2 * step, largest)
        rest = begin + len(kept)
        until = min(max(end, rest + (SMALL if is_small else step)), self._size)
        block = kept + self._pattern.timed(self._fetch, rest, until, is_small)
        self._pattern.note(begin, end)
        self._block = begin, block, step
        return block[: end - begin]
