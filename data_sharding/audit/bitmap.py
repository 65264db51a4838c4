"""A set of record ids, one bit for each record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Bytes of the bitmap that are unpacked together: 2**20 ids, 8 MiB of them at most.
_BLOCK_BYTES: Final = 1 << 17


class Bitmap:
    """Ids of [0, n) that are in the set: bit i % 8 of byte i // 8.

    Attributes:
        n: ids there can be.
        bits: uint8[ceil(n / 8)]; bits from n on are 0.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.bits = np.zeros((n + 7) // 8, np.uint8)

    def __len__(self) -> int:
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    def has(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the ids int64[k] are in the set, bool[k]."""
        shifted: NDArray[np.uint8] = self.bits[ids >> 3] >> (ids & 7).astype(np.uint8)
        return (shifted & 1).astype(np.bool_)

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Put in ids int64[k]; return those that were there, and all but the first of those that repeat, ascending."""
        # Many new ids need no sorting; beside them n bytes weigh little: at most twice as much as the ids.
        if 16 * len(ids) >= self.n and self._add_if_new(ids):
            return ids[:0]
        ids = np.sort(ids)
        again = self.has(ids)
        again[1:] |= ids[1:] == ids[:-1]
        if ids.size:
            # One store for each byte: stores to the same byte in one numpy call would overwrite each other.
            places = ids >> 3
            begins = np.flatnonzero(np.diff(places, prepend=-1))
            masks = np.left_shift(1, ids & 7).astype(np.uint8)
            self.bits[places[begins]] |= np.bitwise_or.reduceat(masks, begins)
        return ids[again]

    def _add_if_new(self, ids: NDArray[np.int64]) -> bool:
        marks = np.zeros(self.n, np.bool_)
        marks[ids] = True
        bits = np.packbits(marks, bitorder="little")
        new = int(np.bitwise_count(bits).sum(dtype=np.int64)) == len(ids) and not np.bitwise_and(bits, self.bits).any()
        if new:
            self.bits |= bits
        return new

    def ids(self, inside: bool = True) -> Iterator[NDArray[np.int64]]:
        """The ids in the set, or those outside, ascending, in blocks int64[...] of a few MiB."""
        for begin in range(0, len(self.bits), _BLOCK_BYTES):
            count = min(8 * _BLOCK_BYTES, self.n - 8 * begin)
            unpacked = np.unpackbits(self.bits[begin : begin + _BLOCK_BYTES], count=count, bitorder="little")
            yield np.flatnonzero(unpacked == inside) + 8 * begin
