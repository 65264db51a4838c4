"""The lines of a file of JSON objects that a killed run, a full disk or an older version may have left."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from hvdtrain.history.reading import json_object, open_bounded

Line = dict[str, Any]
Progress = Callable[[int], object]
"""Receives the number of bytes read since it was called before, now and then."""

LONGEST: Final = 2**24
"""Bytes of a line; of ten thousand ranks it has a tenth. A longer one is damage, and is never held in memory."""

MOST: Final = 4 * 2**20
"""Bytes from the end of a file. A line of metrics has about 100 bytes for each rank."""

_CHUNK: Final = 2**16


class JsonLines:
    """The objects in the whole lines of `path`, one at a time, as often as it is iterated; none where it is not there.

    After an iteration `unreadable` says how many lines were not JSON objects, and `torn` whether the last one has no
    end: such a line was being written when its process was killed, and never counts.

    Args:
        words: only lines in which one of these stands; the others are not parsed, and may be anything.
        progress: learns how much has been read.
    """

    def __init__(self, path: Path, words: Sequence[bytes] = (), progress: Progress | None = None) -> None:
        self._path, self._words, self._progress = path, tuple(words), progress or (lambda _: None)
        self.unreadable, self.torn = 0, False

    def __iter__(self) -> Iterator[Line]:
        """Raises `UNREADABLE` where there is something that cannot be read."""
        self.unreadable, self.torn = 0, False
        for raw in self._raw_lines():
            if self._words and not any(word in raw for word in self._words):
                continue
            line = json_object(raw)
            if line is None:
                self.unreadable += 1
            else:
                yield line

    def problems(self) -> Iterator[str]:
        """What was wrong in the last iteration, in sentences."""
        name, count = self._path.name, self.unreadable
        if count:
            lines = "One line" if count == 1 else f"{count:,} lines"
            yield f"{lines} of {name} cannot be read, and {'is' if count == 1 else 'are'} left out."
        if self.torn:
            yield f"The last line of {name} is torn: the run was killed while it wrote it, or is writing it now."

    def _raw_lines(self) -> Iterator[bytes]:
        if not self._path.exists():
            return
        with open_bounded(self._path) as file:
            while raw := file.readline(LONGEST):
                self._progress(len(raw))
                if raw.endswith(b"\n"):
                    yield raw
                elif len(raw) < LONGEST:
                    self.torn = True
                else:
                    self._skip_rest(file)

    def _skip_rest(self, file: BinaryIO) -> None:
        self.unreadable += 1
        while (raw := file.readline(LONGEST)) and not raw.endswith(b"\n"):
            self._progress(len(raw))


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def last_lines(path: Path, most: int = MOST, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The lines of a file without their ends, the last one first, read backwards: however much was written before.

    What follows the last line end is left out: it is still being written, or its writer was killed.

    Args:
        most: bytes that are read; a line that begins before them is left out.
        chunk: bytes that are read at once.

    Raises `UNREADABLE`.
    """
    with open_bounded(path) as file:
        end = file.seek(0, os.SEEK_END)
        first = max(0, end - most)
        unfinished: list[bytes] = []  # parts of the line whose beginning has not been read yet, the last one first
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
