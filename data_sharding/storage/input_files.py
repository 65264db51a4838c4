"""From what a user names (file, folder, glob, URL, or several) to an ordered list of data files."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from data_sharding.errors import MissingDataError, PlanError
from data_sharding.storage.file_entry import FileEntry

Paths = str | Path | Sequence[str | Path]


def find_files(
    paths: Paths, patterns: tuple[str, ...], recursive: bool = False, listed: dict[str, FileEntry] | None = None
) -> list[str]:
    """Absolute paths or URLs of all files named, in the order of the arguments, sorted by path within each.

    A folder stands for its own files (with `recursive` also those of its subfolders) whose names match one of
    `patterns`; a glob (`**` crosses folders) for whatever files it matches; a path that exists is taken as it is even
    if it holds glob characters.

    Args:
        listed: takes up the files whose entries are known by the way, as `describe_file` would give them.

    Raises:
        MissingDataError: nothing was named, or an argument leads to no file.
        PlanError: two arguments lead to the same file, whose records would be read twice.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named:
        raise MissingDataError("No data path was given.", "There is nothing to read.", "name a file, folder or glob.")
    if "" in map(str, named):
        raise MissingDataError("An empty data path was given.", "It names nothing.", "check the variable it came from.")
    files = [file for item in named for file in _expand(str(item), patterns, recursive, listed)]
    _check_distinct(files)
    return files


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether the base name of `path` matches one of the patterns, in any case. Hidden files never do."""
    name = path.rpartition("/")[2].lower()
    return not name.startswith(".") and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def no_such_files(folder: str, patterns: tuple[str, ...]) -> MissingDataError:
    """The error for a folder without data files."""
    return MissingDataError(
        f"Folder {folder} holds no file named {' or '.join(patterns)}.",
        "There is nothing to read.",
        "name another folder, the format, or a glob if the files are named otherwise; .gz files are expanded first.",
    )


def no_match(path: str) -> MissingDataError:
    """The error for a glob without a match."""
    return MissingDataError(
        f"No file matches {path}.",
        "There is nothing to read.",
        "check the pattern, and quote it for the shell; a [ in a name is written [[].",
    )


def _expand(item: str, patterns: tuple[str, ...], recursive: bool, listed: dict[str, FileEntry] | None) -> list[str]:
    if "://" in item:
        from data_sharding.storage.remote import expand_remote

        return expand_remote(item, patterns, recursive, listed=listed)
    path = os.path.abspath(item)
    if os.path.isdir(path):
        return _folder_files(path, patterns, recursive)
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        raise MissingDataError(f"{path} does not exist.", "Its records cannot be read.", "check the path.")
    files = sorted(match for match in glob.glob(path, recursive=True) if not os.path.isdir(match))
    if not files:
        raise no_match(path)
    return _require_files(files)


def _folder_files(folder: str, patterns: tuple[str, ...], recursive: bool) -> list[str]:
    files = []
    for parent, subfolders, names in os.walk(folder, followlinks=True):
        subfolders[:] = [name for name in subfolders if recursive and not name.startswith(".")]
        files += [os.path.join(parent, name) for name in names if matches(name, patterns)]
    if not files:
        raise no_such_files(folder, patterns)
    return _require_files(sorted(files))


def _require_files(files: list[str]) -> list[str]:
    """Else a link to a disk that is not mounted would make its records vanish without a word."""
    for file in files:
        if not os.path.isfile(file):
            what = "is a link to nothing" if os.path.islink(file) and not os.path.exists(file) else "is no regular file"
            raise MissingDataError(
                f"{file} {what}.", "Its name says that it holds records.", "mend or remove it, or name the others."
            )
    return files


def _check_distinct(files: list[str]) -> None:
    named: dict[object, str] = {}
    for file in files:
        key = file if "://" in file else _identity(file)
        if key in named:
            raise PlanError(
                f"{file} is named twice." if named[key] == file else f"{file} and {named[key]} are one file.",
                "Its records would be read twice in an epoch.",
                "make the paths and globs disjoint.",
            )
        named[key] = file


def _identity(file: str) -> object:
    """What links, hard links and `..` cannot hide. A file that is not there is refused when it is opened."""
    try:
        status = os.stat(file)
    except OSError:
        return file
    return status.st_dev, status.st_ino
