"""Sequential reading in blocks that grow, so that many small reads take few requests."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FIRST_BLOCK: Final = 256 << 10
LARGEST_BLOCK: Final = 8 << 20
_NEAR: Final = 2 << 20
"""A reader that skips less than this still counts as sequential: to skip costs a request, to read on costs bytes."""


@final
class ReadAhead:
    """Reads of a file through one remembered block; safe to use from many threads.

    Args:
        fetch: the bytes [begin, end) of the file.
        size: of the file.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        # One tuple, replaced as a whole: a thread sees either the old block or the new one.
        self._block: tuple[int, bytes, int] = (0, b"", FIRST_BLOCK)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end), cut at the file's end."""
        begin, end = min(begin, self._size), min(end, self._size)
        start, data, step = self._block
        stop = start + len(data)
        if start <= begin and end <= stop:
            return data[begin - start : end - start]
        if end <= begin:
            return b""
        kept = data[begin - start :] if start <= begin < stop else b""
        step = min(2 * step, LARGEST_BLOCK) if data and start <= begin <= stop + _NEAR else FIRST_BLOCK
        rest = begin + len(kept)
        block = kept + self._fetch(rest, min(max(end, rest + step), self._size))
        self._block = begin, block, step
        return block[: end - begin]


@final
class ReadAheadFile(io.RawIOBase):
    """A seekable, read-only file over `ReadAhead`, for libraries that want one."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, name: str) -> None:
        self._ahead = ReadAhead(fetch, size)
        self._size = size
        self._at = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._ahead.read(self._at, self._at + len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
