"""Bytes of one file, wherever it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Protocol


class ByteSource(Protocol):
    """A file of fixed size, open for reading at random from many threads."""

    def size(self) -> int:
        """Bytes that the file has now: asked again on every call where that is cheap."""

    def __getitem__(self, span: slice) -> bytes:
        """Bytes [begin, end), cut at the file's end like any slice. No step, no negative bounds."""

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Bytes [begins[i], ends[i]) for each i; remote files are asked for all at once."""

    def file(self) -> BinaryIO:
        """A seekable view for libraries that want a file; starts at byte 0, and closing it closes nothing else."""

    def close(self) -> None:
        """Give up the file. May be called twice."""
