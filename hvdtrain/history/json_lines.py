"""The lines of a file of JSON objects that a killed run, a full disk or an older version may have left."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from hvdtrain.history.bounded_file import open_bounded

Line = dict[str, Any]

LONGEST: Final = 2**24
"""Bytes of a line; of ten thousand ranks it has a tenth. A longer one is damage, and is never held in memory."""


class JsonLines:
    """The objects in the whole lines of `path`, one at a time, as often as it is iterated; none where it is not there.

    After an iteration `unreadable` says how many lines were no JSON objects, and `torn` whether the last one has no
    end: such a line was being written when its process was killed, and never counts.

    Args:
        words: only lines in which one of these stands; the others are not parsed, and may be anything.
        told: is given the number of bytes read since it was called before, now and then.
    """

    def __init__(self, path: Path, words: Sequence[bytes] = (), told: Callable[[int], object] | None = None) -> None:
        self._path, self._words, self._told = path, tuple(words), told
        self.unreadable, self.torn = 0, False

    def __iter__(self) -> Iterator[Line]:
        """Raises OSError and UnusableFileError where there is something that cannot be read."""
        self.unreadable, self.torn = 0, False
        for raw in self._raw_lines():
            if self._words and not any(word in raw for word in self._words):
                continue
            line = _parsed(raw)
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
                self._tell(len(raw))
                if raw.endswith(b"\n"):
                    yield raw
                elif len(raw) < LONGEST:
                    self.torn = True
                else:
                    self._skip_rest(file)

    def _skip_rest(self, file: BinaryIO) -> None:
        self.unreadable += 1
        while (raw := file.readline(LONGEST)) and not raw.endswith(b"\n"):
            self._tell(len(raw))

    def _tell(self, count: int) -> None:
        if self._told is not None:
            self._told(count)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _parsed(raw: bytes) -> Line | None:
    try:
        value = json.loads(raw.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
