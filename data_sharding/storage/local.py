"""Files on this machine, memory-mapped."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from typing import BinaryIO, final

from data_sharding.errors import MissingDataError
from data_sharding.storage.file_entry import FileEntry


@final
class LocalSource:
    """`ByteSource` over a read-only map.

    A map is twice as fast as a read call per record. Its price: the kernel kills a process that touches it beyond the
    end of a file cut short meanwhile; `size()` is therefore asked before every batch.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def size(self) -> int:
        return self._map.size()

    def __getitem__(self, span: slice) -> bytes:
        return self._map[span]

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        view = self._map
        return [view[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def file(self) -> BinaryIO:
        return open(self._path, "rb")

    def close(self) -> None:
        # Closing the map would disturb a thread that still reads it: its last user's reference going away closes it.
        pass


def stat_local(path: str) -> FileEntry:
    """Describe a local file that is to be indexed; it may be empty, or a link to nothing.

    Raises:
        MissingDataError: it cannot be reached, or is not a regular file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.islink(path):
            return FileEntry(path, 0, FileEntry.LINK_TO_NOTHING)
        raise MissingDataError(
            f"{path} cannot be opened: {error.strerror}.", "Its records cannot be read.", "check the path."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise MissingDataError(
            f"{path} is not a regular file.", "Only files can be read at random.", "name files, folders or globs."
        )
    return FileEntry.from_status(path, status)


def open_local(entry: FileEntry) -> LocalSource:
    """Open a file that was indexed.

    Raises:
        ChangedDataError: it has gone, or is not the one that was indexed.
    """
    try:
        # Without O_NONBLOCK, to open what has become a FIFO meanwhile would wait for a writer.
        with open(os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            entry.verify_same(FileEntry.from_status(entry.path, os.fstat(file.fileno())))
            return LocalSource(entry.path, file)
    except OSError as error:
        raise entry.changed(f"cannot be reached: {error.strerror}") from error


def verify_local(entry: FileEntry) -> None:
    """Raise ChangedDataError unless the file is still the one that was indexed."""
    try:
        now = FileEntry.of(entry.path)
    except OSError as error:
        if entry.version == FileEntry.LINK_TO_NOTHING and os.path.islink(entry.path):
            return
        raise entry.changed(f"cannot be reached: {error.strerror}") from error
    entry.verify_same(now)
