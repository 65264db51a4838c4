"""Write files so that a reader, or a crash at any moment, sees the old content or the new one, never a part."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from data_sharding.atomic import atomic_file, final_path
from hvdtrain.errors import HvdtrainError, UsageError

_BLOCK_BYTES: Final = 2**16


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file `path`, as `data_sharding.atomic` does it. Raises OSError: as `open`, `write` and `rename` do,
    or `path` is no regular file; it is then unchanged."""
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` of indented JSON; NaN and infinity, which only Python reads back, stay what they are."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def finite(value: Any) -> Any:
    """`value` as every reader of JSON takes it, with None in the place of numbers that are not finite, at any depth."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_quickly(path: Path, content: bytes) -> None:
    """Replace the file `path` for readers as `write_atomically` does, without waiting until it is on disk: for what is
    written again in a moment. Each file has one writer, and one temporary name, which a killed writer may leave.

    Raises OSError: as `open`, `write` and `rename` do; the file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def open_lines(path: Path) -> TextIO:
    """Open for appending lines, without the part of a line that a killed writer may have left at the end. Raises
    OSError: as `open` does, or `path` is no regular file."""
    path = final_path(path)
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(_end_of_last_line(file))
    return path.open("a", encoding="utf-8")


def _end_of_last_line(file: BinaryIO) -> int:
    """Read from the end: a file of lines may be large."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def unwritable(path: Path, error: OSError) -> HvdtrainError:
    """What to say where something cannot be written to the run folder `path`.

    A disk that is full is no wrong usage: a job may be started again when there is room.
    """
    kind = HvdtrainError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
    return kind(
        f"The run folder {path} cannot be written: {error.strerror or error}.",
        "Metrics and checkpoints would be lost.",
        "choose another --output-dir, on a disk that you may write and that every host sees.",
    )
