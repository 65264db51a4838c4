"""From what a user names (file, folder, glob, or several) to an ordered list of data files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from data_sharding.errors import MissingDataError, PlanError

Paths = str | Path | Sequence[str | Path]


def find_files(paths: Paths, suffixes: tuple[str, ...]) -> list[str]:
    """Absolute paths of all files named, in the order of the arguments, sorted by path within each.

    A folder stands for its own files that end in one of `suffixes`; a glob (`**` crosses folders) for whatever files
    it matches; a path that exists is taken as it is even if it holds glob characters.

    Raises:
        MissingDataError: nothing was named, or an argument leads to no file.
        PlanError: two arguments lead to the same file, whose records would be read twice.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named:
        raise MissingDataError("No data path was given.", "There is nothing to read.", "name a file, folder or glob.")
    files = [file for item in named for file in _expand(os.path.abspath(item), suffixes)]
    _check_distinct(files)
    return files


def _expand(path: str, suffixes: tuple[str, ...]) -> list[str]:
    if os.path.isdir(path):
        return _folder_files(path, suffixes)
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        raise MissingDataError(f"{path} does not exist.", "Its records cannot be read.", "check the path.")
    files = sorted(match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
    if not files:
        raise MissingDataError(
            f"No file matches {path}.", "There is nothing to read.", "check the pattern, and quote it for the shell."
        )
    return files


def _folder_files(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    with os.scandir(folder) as entries:
        files = sorted(entry.path for entry in entries if entry.name.endswith(suffixes) and entry.is_file())
    if not files:
        raise MissingDataError(
            f"Folder {folder} holds no file ending in {' or '.join(suffixes)}.",
            "There is nothing to read.",
            "name another folder, or give a glob if the files are named otherwise.",
        )
    return files


def _check_distinct(files: list[str]) -> None:
    named: dict[str, str] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in named:
            raise PlanError(
                f"{file} is named twice." if named[real] == file else f"{file} and {named[real]} are one file.",
                "Its records would be read twice in an epoch.",
                "make the paths and globs disjoint.",
            )
        named[real] = file
