"""From what a user names (file, folder, glob, URL, or several) to an ordered list of data files."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from data_sharding.errors import MissingDataError, PlanError

Paths = str | Path | Sequence[str | Path]


def find_files(paths: Paths, patterns: tuple[str, ...], recursive: bool = False) -> list[str]:
    """Absolute paths or URLs of all files named, in the order of the arguments, sorted by path within each.

    A folder stands for its own files (with `recursive` also those of its subfolders) whose names match one of
    `patterns`; a glob (`**` crosses folders) for whatever files it matches; a path that exists is taken as it is even
    if it holds glob characters.

    Raises:
        MissingDataError: nothing was named, or an argument leads to no file.
        PlanError: two arguments lead to the same file, whose records would be read twice.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named:
        raise MissingDataError("No data path was given.", "There is nothing to read.", "name a file, folder or glob.")
    files = [file for item in named for file in _expand(str(item), patterns, recursive)]
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
        "name another folder, or give a glob if the files are named otherwise.",
    )


def no_match(path: str) -> MissingDataError:
    """The error for a glob without a match."""
    return MissingDataError(
        f"No file matches {path}.", "There is nothing to read.", "check the pattern, and quote it for the shell."
    )


def _expand(item: str, patterns: tuple[str, ...], recursive: bool) -> list[str]:
    if "://" in item:
        from data_sharding.storage.remote import expand_remote

        return expand_remote(item, patterns, recursive)
    path = os.path.abspath(item)
    if os.path.isdir(path):
        return _folder_files(path, patterns, recursive)
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        raise MissingDataError(f"{path} does not exist.", "Its records cannot be read.", "check the path.")
    files = sorted(match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
    if not files:
        raise no_match(path)
    return files


def _folder_files(folder: str, patterns: tuple[str, ...], recursive: bool) -> list[str]:
    files = []
    for parent, subfolders, names in os.walk(folder, followlinks=True):
        if not recursive:
            subfolders.clear()
        files += [os.path.join(parent, name) for name in names if matches(name, patterns)]
    files = sorted(file for file in files if os.path.isfile(file))
    if not files:
        raise no_such_files(folder, patterns)
    return files


def _check_distinct(files: list[str]) -> None:
    named: dict[str, str] = {}
    real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)  # the same for all files of a folder
    for file in files:
        real = file if "://" in file else _real_path(file, real_folder)
        if real in named:
            raise PlanError(
                f"{file} is named twice." if named[real] == file else f"{file} and {named[real]} are one file.",
                "Its records would be read twice in an epoch.",
                "make the paths and globs disjoint.",
            )
        named[real] = file


def _real_path(file: str, real_folder: Callable[[str], str]) -> str:
    if os.path.islink(file):
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    return os.path.join(real_folder(folder), name)
