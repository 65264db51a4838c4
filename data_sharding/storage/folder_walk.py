"""Folders below folders and globs that cross them, through links too, in a time that follows the number of folders."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from data_sharding.errors import MissingDataError

_LOST_FILES: Final = "lost+found"  # fsck's, on the root of a disk; only root may read it


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the folder and all that are not hidden below it, each with the names of its files.

    Links are followed, but not to a folder in which they lie themselves: its files are found anyway. A folder to which
    several links lead is given twice and not more often: that shows its files to be doubled, and the number of ways may
    double with each link.

    Raises:
        MissingDataError: a folder cannot be read.
    """
    above = {folder: frozenset(map(identity, map(str, Path(folder).resolve().parents)))}
    visits: Counter[object] = Counter()
    for parent, subfolders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        holders, this = above.pop(parent), identity(parent)
        visits[this] += 1
        if this in holders or visits[this] > 2:
            subfolders.clear()
            continue
        subfolders[:] = _visible(subfolders)
        above.update((os.path.join(parent, name), holders | {this}) for name in subfolders)
        yield parent, names


def listing(folder: str) -> tuple[list[str], list[str]]:
    """Names of the subfolders that are not hidden, and of all that is no folder.

    Raises:
        MissingDataError: the folder cannot be read.
    """
    _, subfolders, names = next(os.walk(folder, onerror=_unreadable))
    return _visible(subfolders), names


def glob_files(pattern: str) -> list[str]:
    """All that an absolute pattern matches and is no folder, sorted; `**` stands for the folders of `walk`.

    Raises:
        MissingDataError: as `walk`.
    """
    return sorted(path for path in _matches(pattern) if not os.path.isdir(path))


def identity(path: str) -> object:
    """What links, hard links and `..` cannot hide; of a path that is not there, the path."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


def _matches(pattern: str) -> set[str]:
    head, crossing, tail = f"{pattern}/".partition("/**/")
    if not crossing:
        return set(glob.glob(pattern))
    tail = tail.rstrip("/") or "*"
    roots = [path for path in glob.glob(head or "/") if os.path.isdir(path)]
    folders = (parent for root in roots for parent, _ in walk(root))
    return {path for parent in folders for path in _matches(f"{glob.escape(parent.rstrip('/'))}/{tail}")}


def _visible(subfolders: list[str]) -> list[str]:
    return [name for name in subfolders if not name.startswith(".") and name != _LOST_FILES]


def _unreadable(error: OSError) -> None:
    raise MissingDataError(
        f"Folder {error.filename} cannot be read: {error.strerror}.",
        "Records in it would be left out.",
        "allow it to be read, or name the folders that hold the data.",
    ) from error
