"""What a reader of run folders needs: files may be of any size, half written or no files at all, and what stands in
them may come from another program or another version."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

_LARGEST: Final = 1e100  # what is larger has diverged: sums and pictures of it would be infinite
_MOST_STEPS: Final = 2**62
_DEEPEST: Final = 20  # mappings inside of each other; what is deeper is not a config of ours


class UnusableFileError(ValueError):
    """What a file is, in words that follow its name in a sentence."""


UNREADABLE: Final = (OSError, UnusableFileError)
"""What opening and reading a file raises: it is not a regular file, is too large, or as `open` and `read` do."""


def reason(error: Exception) -> str:
    """Why a file cannot be read, in words that follow its name in a sentence. Args: `error`: one of `UNREADABLE`."""
    return f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def open_bounded(path: Path) -> BinaryIO:
    """The file `path` for reading, without waiting for a writer as a FIFO would. Raises `UNREADABLE`."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  the caller closes it
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


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


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
    """The values inside of mappings, each with its keys: "data.dir" of {"data": {"dir": …}}.

    Args:
        ignored: such keys, left out with all that is inside of them.
        before: stands before each key.
    """
    for name, value in values.items():
        key = f"{before}{name}"
        if key in ignored:
            continue
        if isinstance(value, Mapping) and value and key.count(".") < _DEEPEST:
            yield from flattened(value, ignored, f"{key}.")
        else:
            yield key, value
