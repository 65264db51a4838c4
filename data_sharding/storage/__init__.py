"""Where files are: on this machine, or behind a URL that fsspec can read."""

from typing import Any, cast

from data_sharding.atomic import atomic_file
from data_sharding.errors import CatalogError, ShardingError
from data_sharding.storage.byte_source import ByteSource as ByteSource
from data_sharding.storage.file_entry import FileEntry as FileEntry
from data_sharding.storage.mapped_file import open_local, stat_local, verify_local
from data_sharding.storage.redaction import redacted, without_secrets


def is_remote(path: str) -> bool:
    """Whether `path` is a URL such as s3://bucket/key."""
    return "://" in path


def describe_file(path: str) -> FileEntry:
    """The file as it is now. Raises MissingDataError (it cannot be reached, is not a file, or is empty)."""
    entry = locate_file(path)
    if not entry.size:
        raise entry.no_content()
    return entry


def locate_file(path: str) -> FileEntry:
    """The file as it is now, which may be empty, or a local link to nothing.

    Raises MissingDataError (it cannot be reached, or is not a file).
    """
    return cast(FileEntry, _remote().stat_remote(path)) if is_remote(path) else stat_local(path)


def open_source(entry: FileEntry) -> ByteSource:
    """Open a file that was indexed.

    Raises ChangedDataError (it has gone, or is not the one that was indexed): of a remote file, its first read does.
    """
    return cast(ByteSource, _remote().open_remote(entry)) if is_remote(entry.path) else open_local(entry)


def verify_unchanged(entry: FileEntry) -> None:
    """Raise ChangedDataError unless the file still is the one that was indexed."""
    (_remote().verify_remote if is_remote(entry.path) else verify_local)(entry)


def verify_read(entry: FileEntry) -> None:
    """As `verify_unchanged`, for a file that was read just now: S3's answers have been compared one by one already."""
    (_remote().verify_read_remote if is_remote(entry.path) else verify_local)(entry)


def write_file(path: str, content: bytes) -> None:
    """Write a file, whole or not at all. Raises CatalogError: it cannot be written there."""
    try:
        if is_remote(path):
            _remote().write_remote(path, content)
        else:
            with atomic_file(path) as file:
                file.write(content)
    except Exception as error:  # what file systems raise when they cannot write is of no one kind
        cause = error.fact if isinstance(error, ShardingError) else f"{type(error).__name__}: {error}"
        raise CatalogError(
            f"{redacted(path)} cannot be written.",
            without_secrets(cause, path).rstrip(".") + ".",
            "write where you may, for example into a copy of the folder before it is uploaded.",
        ) from (error if redacted(path) == path else None)


def _remote() -> Any:
    """Imported on first use: fsspec takes a while."""
    from data_sharding.storage import remote

    return remote
