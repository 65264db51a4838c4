"""One rank's log, read in pieces: it may be of any size, grow meanwhile, be truncated, or be begun anew."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvdtrain.history.bounded_file import open_bounded
from hvdtrain.history.log_format import head_of

CHUNK: Final = 2**16
LONGEST: Final = 2**16
"""Bytes of a line. What is longer comes as several lines."""

_UNKNOWN_TIME: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes:
        rank: whose log it is.
        text: without its end.
        time: of its record, in seconds since the epoch; -inf before the file's first record.
        level: of its record, as `logging` counts them; 0 before the first record.
        begins: whether its record begins here. Others, such as lines of a traceback, belong to the line before.
    """

    rank: int
    text: bytes
    time: float
    level: int
    begins: bool


class LogFile:
    """The log of a rank. No file stays open between two pieces: there may be thousands of ranks.

    Args:
        chunk: bytes that are read at once.
    """

    def __init__(self, path: Path, rank: int, chunk: int = CHUNK) -> None:
        self.path, self.rank, self._chunk = path, rank, chunk
        self._inode = self._offset = 0
        self._rest = b""  # of a line that has not ended
        self._is_inside = False  # of a line whose first part was told already
        self._time, self._level = _UNKNOWN_TIME, 0

    def lines(self, whole: bool) -> Iterator[LogLine]:
        """The lines that have come since the last call, up to the end that the file has now.

        Args:
            whole: whether a last line without an end is a line, too: nobody writes on, or it was left torn.

        Raises:
            OSError: as `open` and `read` do.
            UnusableFileError: it is no regular file.
        """
        end = self._end()
        while self._offset < end and (data := self._read(end)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for text in lines:
                yield from self._told(text, ends=True)
            if len(self._rest) > LONGEST:
                text, self._rest = self._rest, b""
                yield from self._told(text, ends=False)
        if whole and self._rest:
            text, self._rest = self._rest, b""
            yield from self._told(text, ends=False)

    def _end(self) -> int:
        """The size of the file now; where it is another file, or a truncated one, all of it is to be read."""
        with open_bounded(self.path) as file:
            status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._rest, self._is_inside = status.st_ino, 0, b"", False
        return status.st_size

    def _read(self, end: int) -> bytes:
        with open_bounded(self.path) as file:
            file.seek(self._offset)
            data = file.read(min(self._chunk, end - self._offset))
        self._offset += len(data)
        return data

    def _told(self, text: bytes, ends: bool) -> Iterator[LogLine]:
        head = None if self._is_inside else head_of(text)
        if head is not None:
            self._time, self._level = head
        for begin in range(0, max(1, len(text)), LONGEST):
            begins = head is not None and begin == 0
            yield LogLine(self.rank, text[begin : begin + LONGEST], self._time, self._level, begins)
        self._is_inside = not ends
