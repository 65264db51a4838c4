"""Write files so that a reader, or a crash at any moment, sees the old content or the new one, never a part."""

import json
import os
from pathlib import Path
from typing import Any, TextIO

from data_sharding.atomic import atomic_file, final_path
from hvdtrain.errors import UsageError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file `path`, as `data_sharding.atomic` does it.

    Raises:
        OSError: as `open`, `write` and `rename` do, or `path` is no regular file; it is then unchanged.
    """
    with atomic_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` of indented JSON."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def replace_quickly(path: Path, content: bytes) -> None:
    """Replace the file `path` for readers as `write_atomically` does, without waiting until it is on disk: for what is
    written again in a moment. Each file has one writer, and one temporary name, which a killed writer may leave.

    Raises:
        OSError: as `open`, `write` and `rename` do; the file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def open_lines(path: Path) -> TextIO:
    """Open for appending lines, without the part of a line that a killed writer may have left at the end.

    Raises:
        OSError: as `open` does, or `path` is no regular file.
    """
    path = final_path(path)
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    return path.open("a", encoding="utf-8")


def unwritable(path: Path, error: OSError) -> UsageError:
    """What to say where something cannot be written to the run folder `path`."""
    return UsageError(
        f"The run folder {path} cannot be written: {error.strerror or error}.",
        "Metrics and checkpoints would be lost.",
        "choose another --output-dir, on a disk that you may write and that every host sees.",
    )
