"""Whether whoever goes through a file is served better by large blocks or by one small range for each look."""

import time
from collections.abc import Callable
from typing import Final

SMALL: Final = 4 << 10
"""A small range: one or two headers."""

_SURE: Final = 1 << 20
_FEW: Final = 64
"""A small range is tried if a block of 1 MiB or more had no more looks than this, or a look leaps far."""

_THIN: Final = 10
"""Blocks are right for readers that use more than a tenth of them."""


class AccessPattern:
    """Counts the looks at a file and times what is fetched for them.

    An index looks at the header of each record. Where records are small, blocks hold thousands of them; where they are
    large, and the network is shared with other files, a request for each header takes less time. Both are tried, and
    what took fewer seconds a look is taken from then on.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._looks = self._used = self._end = 0
        self._fetched, self._seconds, self._was_small = 0, 0.0, False
        self._small_s: float | None = None  # of the last small range
        self._block = (float("inf"), 1, 1)  # seconds, bytes and looks of the last block

    def note(self, begin: int, end: int) -> None:
        """Bytes [begin, end) are looked at."""
        self._looks += begin != self._end
        self._used += end - begin
        self._end = end

    def wants_small(self, step: int, largest: int, is_leap: bool) -> bool:
        """Whether the next look is to fetch a small range instead of a block.

        Args:
            step, largest: bytes of the next block, and of those that would follow in time.
            is_leap: the look begins behind everything that was fetched, and not just behind it.
        """
        if self._was_small:
            self._small_s = self._seconds
            return is_leap and self._seconds / max(self._looks, 1) < self._block_seconds(largest)
        if not self._looks or self._used * _THIN > self._fetched:
            return False
        self._block = (self._seconds, self._fetched, self._looks)
        if self._small_s is not None:
            return is_leap and self._small_s < self._block_seconds(largest)
        return self._looks <= _FEW and (is_leap or step >= _SURE)

    def _block_seconds(self, largest: int) -> float:
        """What a look would take in blocks of `largest` bytes: a small range shows what a request itself takes."""
        seconds, fetched, looks = self._block
        request_s = min(self._small_s or 0.0, seconds)
        return (request_s * fetched / largest + seconds - request_s) / looks

    def timed(self, fetch: Callable[[int, int], bytes], begin: int, end: int, is_small: bool) -> bytes:
        """What `fetch` returns, whose time counts for the looks from now on."""
        start = self._clock()
        content = fetch(begin, end)
        self._seconds, self._was_small = self._clock() - start, is_small
        self._fetched, self._looks, self._used = end - begin, 0, 0
        return content
