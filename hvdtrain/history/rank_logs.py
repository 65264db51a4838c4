"""The logs of all ranks of a run as one, in the order of time, in memory for one piece of each file.

    2026-11-24T23:38:03.123+00:00 INFO hvdtrain.run: epoch ended: epoch 1, step 30

Such are the lines of logs/rank_N.log. In jobs of many ranks those of a host write one file, logs/host_NAME.log, in
which "rank N" stands before the name of the logger. The time has the offset of its host's zone, so that hosts in
different zones, and the two sides of a change of the clock in spring or autumn, can be brought into one order. The
lines of a traceback follow the line of their record. A file may be of any size, grow meanwhile, be truncated, or be
begun anew.
"""

import heapq
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final

from hvdtrain.history.reading import UNREADABLE, open_bounded, reason

FOLDER: Final = "logs"
LONGEST: Final = 2**16
"""Bytes of a line. What is longer comes as several lines."""

_NAME: Final = re.compile(r"rank_(\d{1,7})\.log|host_.+\.log")
_CHUNK: Final = 2**16
_ALL_CHUNKS: Final = 2**26
_LEAST_CHUNK: Final = 2**12
_UNKNOWN_TIME: Final = float("-inf")
_HEAD: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}(?:Z|[+-]\d\d:\d\d)?) (DEBUG|INFO|WARNING|ERROR|CRITICAL) "
)
"""Versions before 0.2 wrote a space, a comma and no zone: then it is the reader's own."""
_RANK: Final = re.compile(rb"rank (\d{1,7}) ")
"""What follows in the log of a host."""


class LogFormatter(logging.Formatter):
    """Formats a record as above; of `rank`, for the log of a host."""

    def __init__(self, rank: int | None = None) -> None:
        of_rank = "" if rank is None else f"rank {rank} "
        super().__init__(f"%(asctime)s %(levelname)s {of_rank}%(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  overrides
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def head_of(line: bytes) -> tuple[float, int] | None:
    """The time, in seconds since the epoch, and the level, as `logging` counts them, in the first line of a record.
    None for a line that continues a record, such as one of a traceback."""
    match = _HEAD.match(line)
    if match is None:
        return None
    try:
        level = logging.getLevelNamesMapping()[match[2].decode()]
        return datetime.fromisoformat(match[1].decode()).timestamp(), level
    except (ValueError, OverflowError, OSError):
        return None  # a date such as the 31st of February


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log."""

    rank: int  # whose log it is
    text: bytes  # without its end
    time: float  # of its record, in seconds since the epoch; -inf before the file's first record
    level: int  # of its record, as `logging` counts them; 0 before the first record
    begins: bool  # whether its record begins here. Others, such as lines of a traceback, belong to the line before.


class LogFile:
    """The log of a rank, or that of a host if `rank` is None. No file stays open between two pieces: there may be
    thousands of ranks."""

    def __init__(self, path: Path, rank: int | None, chunk: int = _CHUNK) -> None:
        self.path, self._is_of_host, self._chunk = path, rank is None, chunk  # bytes that are read at once
        self._rank = rank or 0  # of the last record
        self._inode = self._offset = 0
        self._rest = b""  # of a line that has not ended
        self._is_inside = False  # of a line whose first part was yielded already
        self._time, self._level = _UNKNOWN_TIME, 0

    def lines(self, whole: bool) -> Iterator[LogLine]:
        """The lines that have come since the last call, up to the end that the file has now. Raises `UNREADABLE`.
        `whole`: whether a last line without an end is a line, too: nobody writes on, or it was left torn."""
        end = self._end()
        while self._offset < end and (data := self._read(end)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for text in lines:
                yield from self._pieces(text, ends=True)
            if len(self._rest) > LONGEST:
                yield from self._pieces(self._take_rest(), ends=False)
        if whole and self._rest:
            yield from self._pieces(self._take_rest(), ends=False)

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

    def _take_rest(self) -> bytes:
        text, self._rest = self._rest, b""
        return text

    def _pieces(self, text: bytes, ends: bool) -> Iterator[LogLine]:
        head = None if self._is_inside else head_of(text)
        if head is not None:
            self._time, self._level = head
            text = self._without_rank(text)
        for begin in range(0, max(1, len(text)), LONGEST):
            begins = head is not None and begin == 0
            yield LogLine(self._rank, text[begin : begin + LONGEST], self._time, self._level, begins)
        self._is_inside = not ends

    def _without_rank(self, text: bytes) -> bytes:
        """The first line of a record as the log of a rank has it."""
        head = _HEAD.match(text)
        named = _RANK.match(text, head.end()) if self._is_of_host and head is not None else None
        if named is None:
            return text
        self._rank = int(named[1])
        return text[: named.start()] + text[named.end() :]


def merged(logs: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    """The lines of several logs, by the times of their records; of equal times, those of the first log come first.

    The order inside of a log stays as it is, and a record's lines stay together.
    """
    return heapq.merge(*logs, key=attrgetter("time"))


class RunLogs:
    """The logs of a run, which may get more lines and more files; of these ranks, or of all where none is named."""

    def __init__(self, run: Path, ranks: Collection[int] = ()) -> None:
        self._folder, self._ranks = run / FOLDER, frozenset(ranks)
        self._files: dict[str, LogFile] = {}
        self.problems: dict[str, str] = {}
        """File → why it cannot be read."""

    def ranks(self) -> list[int]:
        """Those that have a file of their own now."""
        return [rank for rank in self._names().values() if rank is not None]

    def has_hosts(self) -> bool:
        """Whether there are logs of hosts, in which any rank may have lines."""
        return None in self._names().values()

    def lines(self, whole: bool) -> Iterator[LogLine]:
        """The lines that have come since the last call. Args: `whole`: as `LogFile.lines` has it."""
        names = self._names()
        chunk = max(_LEAST_CHUNK, min(_CHUNK, _ALL_CHUNKS // max(1, len(names))))
        for name, rank in names.items():
            if name not in self._files:
                self._files[name] = LogFile(self._folder / name, rank, chunk)
        return merged([self._lines_of(self._files[name], whole) for name in names])

    def _names(self) -> dict[str, int | None]:
        """The files that may have lines of these ranks, with whose they are: those of hosts first, then by rank."""
        found: list[re.Match[str]] = []
        with suppress(OSError):
            found = [match for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        owners = {match[0]: None if match[1] is None else int(match[1]) for match in sorted(found, key=itemgetter(0))}
        wanted = {name: rank for name, rank in owners.items() if rank is None or not self._ranks or rank in self._ranks}
        return dict(sorted(wanted.items(), key=lambda item: -1 if item[1] is None else item[1]))

    def _lines_of(self, file: LogFile, whole: bool) -> Iterator[LogLine]:
        try:
            yield from (line for line in file.lines(whole) if not self._ranks or line.rank in self._ranks)
            self.problems.pop(file.path.name, None)
        except FileNotFoundError:
            pass  # removed meanwhile; a new one may come
        except UNREADABLE as error:
            self.problems[file.path.name] = reason(error)


def follow(logs: RunLogs, has_ended: Callable[[], bool], wait: Callable[[], object]) -> Iterator[LogLine]:
    """All lines, and those that come later, until the run `has_ended` and all is read; `wait` returns when it is time
    to look again. Lines are in the order of time among those that are there at the same time: none is held back."""
    while True:
        is_last = has_ended()
        yield from logs.lines(whole=is_last)
        if is_last:
            return
        wait()
