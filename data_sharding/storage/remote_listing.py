"""From a URL (file, folder or glob) to the files that it means."""

import glob
from typing import Any, Final

from data_sharding.storage.file_entry import FileEntry, is_data, matches, no_match, no_such_files
from data_sharding.storage.remote_errors import missing
from data_sharding.storage.remote_filesystem import RETRY, call, is_s3, open_filesystem

_VERSIONS: Final = (
    "ETag generation etag md5Hash content_md5 Content-MD5 LastModified Last-Modified last_modified mtime updated "
    "modified created"
)
"""What file systems call that which changes when the content does, the best first. Google's etag changes with its
metadata, too."""


def entry_of(url: str, about: dict[str, Any]) -> FileEntry:
    """A file as its file system describes it, which must know its size."""
    version = next((str(about[name]) for name in _VERSIONS.split() if about.get(name)), "")
    return FileEntry(url, int(about["size"]), version)


def expand_remote(
    url: str, patterns: tuple[str, ...], recursive: bool, listed: dict[str, FileEntry] | None = None
) -> list[str]:
    """URLs of all files that `url` names, sorted; the rules are those of `find_files`, a prefix being a folder.

    Args:
        listed: receives the files that need not be asked about again, as S3's listing describes them. (Of other stores'
            listings it is not known that they name the same version as the file itself.)

    Raises MissingDataError.
    """
    fs, path = open_filesystem(url, RETRY)
    fs.invalidate_cache()
    try:
        about: dict[str, Any] | None = _ask(fs, "info", path, url)
    except FileNotFoundError:
        about = None
    if about is not None and about["type"] == "file" and not url.endswith("/"):
        files = {url: about}
    elif about is not None or glob.has_magic(path):
        if about is None:
            there, error = _files(_ask(fs, "glob", path, url, detail=True)), no_match(url)
        else:
            below = _files(_ask(fs, "find", path, url, maxdepth=None if recursive else 1, detail=True))
            # What is below a folder that is hidden or the operating system's does not count, as on a local disk.
            inside = {name: name[len(path.rstrip("/")) :].strip("/").split("/")[:-1] for name in below}
            there = {n: item for n, item in below.items() if all(map(is_data, inside[n])) and matches(n, patterns)}
            error = no_such_files(url, patterns)
        if not there:
            raise error
        files = {_url_of(fs, name, path, url): item for name, item in there.items()}
    else:
        raise missing(url)
    if listed is not None and is_s3(fs):
        listed.update({name: entry_of(name, item) for name, item in files.items() if item["size"]})
    return sorted(files)


def _ask(fs: Any, method: str, path: str, url: str, **options: Any) -> dict[str, Any]:
    """What fsspec says: of one path, with a type of "file" or "directory"; of several, by name."""
    answer: dict[str, Any] = RETRY.call(url, lambda limit_s: call(fs, method, path, limit_s=limit_s, **options))
    return answer


def _files(objects: dict[str, Any]) -> dict[str, Any]:
    # Some tools mark a folder by an empty object whose name ends in a slash.
    return {name: about for name, about in objects.items() if about["type"] == "file" and not name.endswith("/")}


def _url_of(fs: Any, name: str, path: str, url: str) -> str:
    """The full URL of a file, with whatever host and options the URL that led to it has."""
    base = url.rstrip("/")
    path = path.rstrip("/")
    return base[: len(base) - len(path)] + name if base.endswith(path) else str(fs.unstrip_protocol(name))
