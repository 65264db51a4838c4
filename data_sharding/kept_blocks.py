"""How much of what was read in blocks this process keeps in memory, and what goes when it is too much.

Blocks are whatever can only be had together: a row group of a Parquet file, decoded; neighbouring records of a file
behind a URL. Who reads them keeps them; this module says which are to go.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final, Protocol

from data_sharding.checks import at_least

DEFAULT_LIMIT: Final = 512 << 20


class Keeper(Protocol):
    """Who keeps blocks, each under a key of its own."""

    def drop(self, key: Hashable) -> None:
        """Keep this block no longer. Called from any thread."""


class KeptBlocks:
    """Says which blocks of all keepers are kept: those used last that fit into `limit` bytes together.

    A keeper that nobody holds any more takes its blocks along; they count until their turn to be dropped.

    Attributes:
        kept: bytes of the blocks that count now.
        dropped: blocks that had to go so far.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._lock = threading.Lock()
        self._sizes: OrderedDict[tuple[weakref.ref[Keeper], Hashable], int] = OrderedDict()
        self._limit, self.kept, self.dropped = limit, 0, 0

    @property
    def limit(self) -> int:
        return self._limit

    def keep_at_most(self, limit: int) -> None:
        """Change the limit, in bytes; the block used last is kept whatever its size. Raises PlanError (below 0)."""
        limit = at_least(0, "the memory for blocks", limit, "It is a number of bytes.")
        with self._lock:
            self._limit = limit
            self._shrink()

    def add(self, keeper: Keeper, key: Hashable, size: int) -> None:
        """Note that a keeper keeps a block of `size` bytes, and have others dropped if it is too much."""
        with self._lock:
            place = weakref.ref(keeper), key
            self.kept += size - self._sizes.pop(place, 0)
            self._sizes[place] = size
            self._shrink()

    def used(self, keeper: Keeper, keys: Iterable[Hashable]) -> None:
        """Note that these blocks of a keeper are used now: others go before them."""
        owner = weakref.ref(keeper)
        with self._lock:
            for key in keys:
                if (place := (owner, key)) in self._sizes:
                    self._sizes.move_to_end(place)

    def _shrink(self) -> None:
        while self.kept > self._limit and len(self._sizes) > 1:
            (owner, oldest), freed = self._sizes.popitem(last=False)
            self.kept -= freed
            if (keeper := owner()) is not None:
                self.dropped += 1
                keeper.drop(oldest)


KEPT: Final = KeptBlocks()
"""Of this process: readers for training and for validation are open at the same time."""


def keep_at_most(limit: int) -> None:
    """Let this process keep at most so many bytes of blocks: row groups, and neighbours that are read by a URL.

    The processes of a host share its memory: give each its part. Raises PlanError: it is no number of bytes.
    """
    KEPT.keep_at_most(limit)
