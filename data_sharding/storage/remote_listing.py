"""From a URL (file, folder or glob) to the files it stands for."""

from __future__ import annotations

import glob
from typing import Any, Final

from data_sharding.errors import MissingDataError
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.patience import PATIENCE, Patience
from data_sharding.storage.redaction import redacted
from data_sharding.storage.remote_errors import missing
from data_sharding.storage.remote_filesystem import call, is_s3, open_filesystem

_VERSIONS: Final = (
    "ETag",
    "generation",  # Google's; its etag changes with metadata, too
    "etag",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "updated",
    "modified",
    "created",
)
"""What file systems call that which changes when the content does, the best first."""


def entry_of(url: str, about: dict[str, Any]) -> FileEntry:
    """A file as its file system describes it, which must know its size."""
    version = next((str(about[name]) for name in _VERSIONS if about.get(name)), "")
    return FileEntry(url, int(about["size"]), version)


def expand_remote(
    url: str,
    patterns: tuple[str, ...],
    recursive: bool,
    patience: Patience = PATIENCE,
    listed: dict[str, FileEntry] | None = None,
) -> list[str]:
    """URLs of all files that `url` names, sorted; the rules are those of `find_files`, a prefix being a folder.

    Args:
        listed: takes up the files that need not be asked about again, as S3's listing describes them. (Of other stores'
            listings it is not known that they name the same version as the file itself.)

    Raises:
        MissingDataError: it leads to no file, or the store does not hand it out.
    """
    fs, path = open_filesystem(url, patience)
    fs.invalidate_cache()
    about = _about(fs, path, url, patience)
    if about is not None and about["type"] == "file" and not url.endswith("/"):
        found = {url: about}
    elif about is not None:
        found = _of_folder(fs, path, url, patterns, recursive, patience)
    elif glob.has_magic(path):
        found = _of_glob(fs, path, url, patience)
    else:
        raise missing(url)
    if listed is not None and is_s3(fs):
        listed.update({name: entry_of(name, item) for name, item in found.items() if item["size"]})
    return sorted(found)


def _about(fs: Any, path: str, url: str, patience: Patience) -> dict[str, Any] | None:
    """What fsspec says of it, with a type of "file" or "directory"; None if there is none."""
    try:
        about: dict[str, Any] = patience.persist(url, lambda limit_s: call(fs, "info", path, limit_s=limit_s))
    except FileNotFoundError:
        return None
    return about


def _of_folder(
    fs: Any, path: str, url: str, patterns: tuple[str, ...], recursive: bool, patience: Patience
) -> dict[str, Any]:
    from data_sharding.storage.input_files import matches, no_such_files

    depth = None if recursive else 1
    found: dict[str, Any] = patience.persist(
        url, lambda limit_s: call(fs, "find", path, maxdepth=depth, detail=True, limit_s=limit_s)
    )
    files = {_url_of(fs, name, path, url): found[name] for name in _files(found) if matches(name, patterns)}
    if not files:
        raise no_such_files(redacted(url), patterns)
    return files


def _of_glob(fs: Any, path: str, url: str, patience: Patience) -> dict[str, Any]:
    found: dict[str, Any] = patience.persist(url, lambda limit_s: call(fs, "glob", path, detail=True, limit_s=limit_s))
    files = {_url_of(fs, name, path, url): found[name] for name in _files(found)}
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
