"""Write files so that a reader, or a crash at any moment, sees the old content or the new, never a part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path`: write a neighbour, fsync it, rename it over `path`, fsync the folder.

    Raises:
        OSError: as `open`, `write` and `rename` do; `path` is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` of indented JSON."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def open_lines(path: Path) -> TextIO:
    """Open for appending lines, without the part of a line that a killed writer may have left at the end."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    return path.open("a", encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
