"""Whether this host sees the data, and a fingerprint of its listing to compare hosts by."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MAX_FILES = 200_000
"""Of one path; of more, the first so many are compared."""


def data_facts(paths: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """For each path or glob: `path`, `files`, `bytes`, `fingerprint` of names and sizes, `readable` (the first file can
    be opened), `whole` (false where there were too many files or the time was up), `error` (a text or None). URLs are
    left out.
    """
    deadline = time.monotonic() + seconds
    return [_described(path, deadline) for path in paths if "://" not in path]


def _described(path: str, deadline: float) -> dict[str, Any]:
    digest, files, size, first, whole = hashlib.sha256(), 0, 0, None, True
    try:
        for name, length, file in _files(path):
            if files >= MAX_FILES or time.monotonic() > deadline:
                whole = False
                break
            digest.update(f"{name}\0{length}\n".encode(errors="surrogateescape"))
            files, size, first = files + 1, size + length, first or file
        error = _unreadable(first)
    except OSError as refusal:
        error = f"{refusal.filename or path}: {refusal.strerror}"
    return {
        "path": path,
        "files": files,
        "bytes": size,
        "fingerprint": digest.hexdigest()[:16],
        "whole": whole,
        "error": error,
    }


def _files(path: str) -> Iterator[tuple[str, int, str]]:
    """(name below the path, bytes, path) of every file, in the same order on every host."""
    if not Path(path).exists() and glob.has_magic(path):
        for found in sorted(glob.glob(path, recursive=True)):
            yield from _below(found, os.path.basename(found))
    else:
        yield from _below(path, "")


def _below(path: str, shown: str) -> Iterator[tuple[str, int, str]]:
    if not os.path.isdir(path):
        yield shown, os.stat(path).st_size, path
        return
    with os.scandir(path) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        yield from _below(entry.path, f"{shown}/{entry.name}")


def _unreadable(path: str | None) -> str | None:
    if path is None:
        return "there are no files"
    with open(path, "rb") as file:
        file.read(1)
    return None
