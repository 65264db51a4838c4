"""What a reader of run folders needs: files may be of any size, half written or no files at all, and what stands in
them may come from another program or another version."""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

_LARGEST: Final = 1e100  # what is larger has diverged: sums and pictures of it would be infinite
_MOST_STEPS: Final = 2**62
_DEEPEST: Final = 20  # mappings inside of each other; what is deeper is not a config of ours

Line = dict[str, Any]
Progress = Callable[[int], object]
"""Receives the number of bytes read since it was called before, now and then."""

LONGEST: Final = 2**24
"""Bytes of a line; of ten thousand ranks it has a tenth. A longer one is damage, and is never held in memory."""

MOST: Final = 4 * 2**20
"""Bytes from the end of a file. A line of metrics has about 100 bytes for each rank."""

_CHUNK: Final = 2**16


class UnusableFileError(ValueError):
    """What a file is, in words that follow its name in a sentence."""


UNREADABLE: Final = (OSError, UnusableFileError)
"""What opening and reading a file raises: it is not a regular file, is too large, or as `open` and `read` do."""


def reason(error: Exception) -> str:
    """Why a file cannot be read, in words that follow its name in a sentence. Args: `error`: one of `UNREADABLE`."""
    return f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def open_bounded(path: Path) -> BinaryIO:
    """The file `path` for reading, without waiting for a writer as a FIFO would; the caller closes it. Raises
    `UNREADABLE`."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115  as above
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnusableFileError("is not a regular file")
    return file


def read_bounded(path: Path, most: int) -> bytes:
    """The whole content of the file `path`, of `most` bytes at most. Raises `UNREADABLE`."""
    with open_bounded(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnusableFileError(f"is larger than {most / 2**20:.0f} MiB, so that no run can have written it")
    return content


def json_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object that `text` is; None where it is anything else, as a disk error or an editor may have left it."""
    try:
        value = json.loads(text.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def finite(value: Any) -> float | None:
    """The number that `value` is; None where it is not one, or as good as infinite."""
    if type(value) is float:  # the usual case
        return value if -_LARGEST < value < _LARGEST else None  # not NaN, either
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if -_LARGEST < number < _LARGEST else None


def number(values: Mapping[str, Any] | None, key: str) -> float | None:
    """The finite number of a key, None where it has none."""
    return None if values is None else finite(values.get(key))


def whole(values: Mapping[str, Any] | None, key: str) -> int | None:
    """The same for a whole number."""
    value = number(values, key)
    return None if value is None or value != int(value) else int(value)


def text(values: Mapping[str, Any] | None, key: str) -> str:
    """The text of a key, "" where it has none."""
    value = None if values is None else values.get(key)
    return value if isinstance(value, str) else ""


def mapping(values: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The object of a key, an empty one where it has none."""
    value = None if values is None else values.get(key)
    return value if isinstance(value, dict) else {}


def step_of(line: Mapping[str, Any]) -> int | None:
    """The step of a line; None where it has none."""
    step = number(line, "step")
    return int(step) if step is not None and 0 <= step < _MOST_STEPS else None


def seconds_in(line: Mapping[str, Any], key: str = "seconds") -> float:
    """A time in a line; 0 where it has none, as in lines of older versions."""
    return max(0.0, number(line, key) or 0.0)


def flattened(
    values: Mapping[str, Any], ignored: frozenset[str] = frozenset(), before: str = ""
) -> Iterator[tuple[str, Any]]:
    """The values inside of mappings, each with its keys: "data.dir" of {"data": {"dir": …}}. Keys that are `ignored`
    are left out with all that is inside of them; `before` stands before each key."""
    for name, value in values.items():
        key = f"{before}{name}"
        if key in ignored:
            continue
        if isinstance(value, Mapping) and value and key.count(".") < _DEEPEST:
            yield from flattened(value, ignored, f"{key}.")
        else:
            yield key, value


class JsonLines:
    """The objects in the whole lines of `path`, one at a time, as often as it is iterated; none where it is not there.

    After an iteration `unreadable` says how many lines were not JSON objects, and `torn` whether the last one has no
    end: such a line was being written when its process was killed, and never counts.

    Args: `words`: only lines in which one of these stands; the others are not parsed, and may be anything.
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

    What follows the last line end is left out: it is still being written, or its writer was killed; and so is a line
    that begins before the last `most` bytes. `chunk`: bytes that are read at once. Raises `UNREADABLE`.
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
