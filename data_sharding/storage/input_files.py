"""From what a user names (file, folder, glob, URL, or several) to an ordered list of data files.

Folders below folders and globs that cross them are walked through links too, in a time that follows the number of
folders.
"""

import glob
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from data_sharding.errors import MissingDataError, PlanError
from data_sharding.storage import is_remote
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.file_entry import FileEntry, is_data, matches, no_match, no_such_files

Paths = str | Path | Sequence[str | Path]

_VERSIONS: Final = (".bin", ".gz")
"""Put after a file's name, these give another version of it: CIFAR's batches without pickle, and compressed files."""
_ASK_THREADS: Final = 32
_DOUBLE: Final = "Its records would be read twice in an epoch."


def find_files(
    paths: Paths, patterns: tuple[str, ...], recursive: bool = False, listed: dict[str, FileEntry] | None = None
) -> list[str]:
    """Absolute paths or URLs of all files named, in the order of the arguments, sorted by path within each.

    A folder means its own files (with `recursive` also those of its subfolders) whose names match one of
    `patterns`; a glob (`**` crosses folders) for whatever files it matches. A path, or a folder at the beginning of a
    path, that exists is taken as it is even if it holds glob characters. What is hidden, and what operating systems
    put beside data, has to be named. Links to nothing are among the files: else the records of a disk that is not
    mounted would vanish without a word.

    Args: `listed`: receives the files whose entries become known meanwhile, as `describe_file` would give them.

    Raises MissingDataError or PlanError.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named:
        raise MissingDataError("No data path was given.", "There is nothing to read.", "name a file, folder or glob.")
    if "" in map(str, named):
        raise MissingDataError("An empty data path was given.", "It is not a path.", "check the variable it came from.")

    def expand(item: str | Path) -> list[str]:
        return _expand(str(item), patterns, recursive, listed)

    threads = _ASK_THREADS if any(is_remote(str(item)) for item in named) else 1
    files = list(itertools.chain.from_iterable(for_files(expand, named, threads)))
    _check_distinct(files, patterns)
    return files


def _expand(item: str, patterns: tuple[str, ...], recursive: bool, listed: dict[str, FileEntry] | None) -> list[str]:
    if is_remote(item):
        from data_sharding.storage.remote import expand_remote

        return expand_remote(item, patterns, recursive, listed)
    path = os.path.abspath(item)
    if os.path.isdir(path):
        folders = walk(path) if recursive else itertools.islice(walk(path), 1)
        names = (os.path.join(parent, name) for parent, names in folders for name in names if matches(name, patterns))
        files = sorted(names)
        nothing = no_such_files(path, patterns, () if files else listing(path)[1])
    elif os.path.lexists(path):
        return [path]
    elif glob.has_magic(path):
        files, nothing = sorted(file for file in matching(path) if not os.path.isdir(file)), no_match(path)
    else:
        missing = MissingDataError(f"{path} does not exist.", "Its records cannot be read.", "check the path.")
        raise _no_rights(path) or missing
    if not files:
        raise _no_rights(path) or nothing
    if odd := next((file for file in files if not os.path.isfile(file) and os.path.exists(file)), None):
        fact = f"{odd} is not a regular file."
        raise MissingDataError(fact, "Its name says that it holds records.", "remove it, or name the others.")
    return files


def _no_rights(path: str) -> MissingDataError | None:
    """The error of a path or glob where this user may not look, so that nothing is known of its files."""
    folder, name = path, ""
    while not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    looks = os.X_OK if name and not glob.has_magic(name) else os.R_OK | os.X_OK  # at one name, or at all
    if os.access(folder, looks, effective_ids=os.access in os.supports_effective_ids):
        return None
    return MissingDataError(
        f"{folder} cannot be read: Permission denied.",
        "Whether it holds records cannot be known.",
        "let this user read it.",
    )


def _check_distinct(files: list[str], patterns: tuple[str, ...]) -> None:
    named: dict[object, str] = {}
    for file in files:
        key = file if is_remote(file) else identity(file)
        if named.get(key) == file:
            raise PlanError(f"{file} is named twice.", _DOUBLE, "make the paths and globs disjoint.")
        if key in named:
            hint = "leave out one of them; if its records are to count twice, make one of them a copy, not a link."
            raise PlanError(f"{named[key]} and {file} are one file.", _DOUBLE, hint)
        named[key] = file
    there = set(files)
    for file in files:
        for suffix in _VERSIONS:
            if f"{file}{suffix}" in there and matches(file, patterns):
                raise PlanError(
                    f"{file} and {file}{suffix} are two versions of one file.",
                    _DOUBLE,
                    f"keep one of them, or name the files of one kind by a glob such as *{suffix}, and their format.",
                )


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the folder and all that are not hidden below it, each with the names of its files.

    Links are followed, but not to a folder that holds the link itself: its files are found anyway. A folder to which
    several links lead is given twice and not more often: that shows its files to be doubled, and the number of ways may
    double with each link. Raises MissingDataError if a folder cannot be read.
    """
    above = {folder: frozenset(map(identity, map(str, Path(folder).resolve().parents)))}
    visits: Counter[object] = Counter()
    for parent, subfolders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        holders, this = above.pop(parent), identity(parent)
        visits[this] += 1
        if this in holders or visits[this] > 2:
            subfolders.clear()
            continue
        subfolders[:] = filter(is_data, subfolders)
        above.update((os.path.join(parent, name), holders | {this}) for name in subfolders)
        yield parent, names


def listing(folder: str) -> tuple[list[str], list[str]]:
    """Names of the subfolders that are not hidden, and of all else. Raises MissingDataError (it cannot be read)."""
    _, subfolders, names = next(os.walk(folder, onerror=_unreadable))
    return [*filter(is_data, subfolders)], names


def identity(path: str) -> object:
    """What links, hard links and `..` cannot hide; of a path that is not there, the path."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


def matching(pattern: str) -> set[str]:
    """All that an absolute pattern matches, below the folders at its beginning that exist as they are written."""
    folder, parts = "", pattern.split("/")[1:]
    while len(parts) > 1 and os.path.isdir(f"{folder}/{parts[0]}"):
        folder += f"/{parts.pop(0)}"
    there = _matches(f"{glob.escape(folder)}/{'/'.join(parts)}")
    wild = {path: {*path[len(folder) + 1 :].split("/")} - {*parts} for path in there}
    # glob itself knows which wildcards stand for hidden names.
    return {path for path, names in wild.items() if all(name.startswith(".") or is_data(name) for name in names)}


def _matches(pattern: str) -> set[str]:
    """All that an absolute pattern matches; `**` means the folders of `walk`."""
    head, crossing, tail = f"{pattern}/".partition("/**/")
    if not crossing:
        return set(glob.glob(pattern))
    tail = tail.rstrip("/") or "*"
    roots = [path for path in glob.glob(head or "/") if os.path.isdir(path)]
    folders = (parent for root in roots for parent, _ in walk(root))
    return {path for parent in folders for path in _matches(f"{glob.escape(parent.rstrip('/'))}/{tail}")}


def _unreadable(error: OSError) -> None:
    fact = f"Folder {error.filename} cannot be read: {error.strerror}."
    conflict = "Records in it would be left out."
    raise MissingDataError(fact, conflict, "allow it to be read, or name the folders that hold the data.") from error
