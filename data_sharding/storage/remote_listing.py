"""From a URL (file, folder or glob) to the files it stands for."""

from __future__ import annotations

import glob
from typing import Any

from data_sharding.errors import MissingDataError
from data_sharding.storage.patience import PATIENCE, Patience
from data_sharding.storage.redaction import redacted
from data_sharding.storage.remote_errors import missing
from data_sharding.storage.remote_filesystem import call, open_filesystem


def expand_remote(url: str, patterns: tuple[str, ...], recursive: bool, patience: Patience = PATIENCE) -> list[str]:
    """URLs of all files that `url` names, sorted; the rules are those of `find_files`, a prefix being a folder.

    Raises:
        MissingDataError: it leads to no file, or the store does not hand it out.
    """
    fs, path = open_filesystem(url, patience)
    fs.invalidate_cache()
    kind = _kind(fs, path, url, patience)
    if kind == "file" and not url.endswith("/"):
        return [url]
    if kind:
        return _of_folder(fs, path, url, patterns, recursive, patience)
    if not glob.has_magic(path):
        raise missing(url)
    return _of_glob(fs, path, url, patience)


def _kind(fs: Any, path: str, url: str, patience: Patience) -> str:
    """What fsspec calls it, "file" or "directory"; empty if there is none."""
    try:
        about = patience.persist(url, lambda limit_s: call(fs, "info", path, limit_s=limit_s))
    except FileNotFoundError:
        return ""
    return str(about["type"])


def _of_folder(
    fs: Any, path: str, url: str, patterns: tuple[str, ...], recursive: bool, patience: Patience
) -> list[str]:
    from data_sharding.storage.input_files import matches, no_such_files

    depth = None if recursive else 1
    found: dict[str, Any] = patience.persist(
        url, lambda limit_s: call(fs, "find", path, maxdepth=depth, detail=True, limit_s=limit_s)
    )
    files = [_url_of(fs, name, path, url) for name in _files(found) if matches(name, patterns)]
    if not files:
        raise no_such_files(redacted(url), patterns)
    return sorted(files)


def _of_glob(fs: Any, path: str, url: str, patience: Patience) -> list[str]:
    found: dict[str, Any] = patience.persist(url, lambda limit_s: call(fs, "glob", path, detail=True, limit_s=limit_s))
    files = sorted(_url_of(fs, name, path, url) for name in _files(found))
    if not files:
        raise MissingDataError(
            f"No file matches {redacted(url)}.",
            "There is nothing to read.",
            "check the pattern, and quote it for the shell.",
        )
    return files


def _files(found: dict[str, Any]) -> list[str]:
    # Some tools mark a folder by an empty object whose name ends in a slash.
    return [name for name, about in found.items() if about["type"] == "file" and not name.endswith("/")]


def _url_of(fs: Any, name: str, path: str, url: str) -> str:
    """The full URL of a file, with whatever host and options the URL that led to it has."""
    base = url.rstrip("/")
    path = path.rstrip("/")
    return base[: len(base) - len(path)] + name if base.endswith(path) else str(fs.unstrip_protocol(name))
