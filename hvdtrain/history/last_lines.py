"""The end of a file of lines, read backwards: what a run has written last, however much it wrote before."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from hvdtrain.history.bounded_file import open_bounded

MOST: Final = 4 * 2**20
"""Bytes from the end. A line of metrics has about 100 bytes for each rank."""

_CHUNK: Final = 2**16


def last_lines(path: Path, most: int = MOST, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The lines of a file without their ends, the last one first. What follows the last line end is left out: it is
    still being written, or its writer was killed.

    Args:
        most: bytes that are read; a line that begins before them is left out.
        chunk: bytes that are read at once.

    Raises:
        OSError: as `open` and `read` do.
        UnusableFileError: it is no regular file.
    """
    with open_bounded(path) as file:
        end = file.seek(0, os.SEEK_END)
        first = max(0, end - most)
        unfinished: list[bytes] = []  # parts of the line whose begin has not been read yet, the last one first
        is_whole = False  # whether a line end follows it
        for data in _chunks(file, first, end, chunk):
            head, *lines = data.split(b"\n")
            if lines:
                lines[-1] += b"".join(reversed(unfinished))
                unfinished = []
                yield from reversed(lines if is_whole else lines[:-1])
                is_whole = True
            unfinished.append(head)
        if is_whole and first == 0:
            yield b"".join(reversed(unfinished))


def _chunks(file: BinaryIO, first: int, end: int, size: int) -> Iterator[bytes]:
    """The bytes from `first` to `end` in pieces, the last one first."""
    while end > first:
        begin = max(first, end - size)
        file.seek(begin)
        yield file.read(end - begin)
        end = begin
