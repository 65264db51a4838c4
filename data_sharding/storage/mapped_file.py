"""Files on this machine, memory-mapped."""

import errno
import os
import resource
import stat
from collections.abc import Sequence
from typing import BinaryIO, Final

from data_sharding.errors import ChangedDataError, MissingDataError, OpenFilesLimitError
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.torn_maps import ReadOnlyMap

OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_READERS: Final = 4
"""Readers of training and of validation data, and as much again for everything else, share what a process may open."""


class LocalSource:
    """`ByteSource` over a read-only map. To be used inside of `watching_maps`: the file may be cut short meanwhile.

    Its last user's reference going away closes it: a call would disturb a thread that still reads it.
    """

    def __init__(self, entry: FileEntry, file: BinaryIO) -> None:
        self._entry = entry
        self.map = ReadOnlyMap(file.fileno())

    def size(self) -> int:
        return self.map.bytes.size()

    def __getitem__(self, span: slice) -> bytes:
        content = self.map.bytes[span]
        if self.map.torn:
            raise self._cut()
        return content

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        view = self.map.bytes
        content = [view[begin:end] for begin, end in zip(begins, ends, strict=True)]
        # Asked for afterwards: behind the new end, the rest of a page reads as zeros.
        if self.map.torn or view.size() != self._entry.size:
            raise self._cut()
        return content

    def file(self) -> BinaryIO:
        return open(self._entry.path, "rb")

    def _cut(self) -> ChangedDataError:
        size = self.size()
        if size == self._entry.size:
            return self._entry.changed("could not be read: it was rewritten meanwhile, or its disk failed")
        return self._entry.changed(f"had {self._entry.size} bytes when it was indexed and has {size} now")


def stat_local(path: str) -> FileEntry:
    """As `locate_file`, of a local file."""
    try:
        status = os.stat(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.islink(path):
            return FileEntry(path, 0, FileEntry.LINK_TO_NOTHING)
        raise MissingDataError(
            f"{path} cannot be opened: {error.strerror}.", "Its records cannot be read.", "check the path."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        fact = f"{path} is not a regular file."
        raise MissingDataError(fact, "Only files can be read at random.", "name files, folders or globs.")
    return FileEntry.from_status(path, status)


def open_local(entry: FileEntry) -> LocalSource:
    """Open a file that was indexed, as `open_source`."""
    try:
        # Without O_NONBLOCK, to open what has become a FIFO meanwhile would wait for a writer.
        with open(os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            entry.verify_same(FileEntry.from_status(entry.path, os.fstat(file.fileno())))
            return LocalSource(entry, file)
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise out_of_descriptors(f"{entry.path} cannot be opened: {error.strerror}") from error
        if isinstance(error, PermissionError):
            fact = f"{entry.path} cannot be opened: {error.strerror}."
            raise MissingDataError(fact, "Its records cannot be read.", "let this user read it.") from error
        raise entry.changed(f"cannot be reached: {error.strerror}") from error


def out_of_descriptors(fact: str) -> OpenFilesLimitError:
    """The error for a process that has as many files open as it may."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFilesLimitError(
        f"{fact}.",
        f"Each open file takes a descriptor, of which this process may have {limit} (ulimit -n).",
        f"allow more with `ulimit -n {max(4096, 4 * limit)}` in the shell or the job script that starts it.",
    )


def affordable(max_open: int) -> int:
    """How many files one reader may keep open: `max_open`, or its share of what the process may open in addition."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return max_open
    try:
        free = limit - len(os.listdir("/dev/fd"))
    except OSError:  # to look takes a descriptor
        free = 0
    return min(max_open, max(1, free // _READERS))


def verify_local(entry: FileEntry) -> None:
    """Raise ChangedDataError unless the file is still the one that was indexed."""
    try:
        now = FileEntry.from_status(entry.path, os.stat(entry.path))
    except OSError as error:
        if entry.version == FileEntry.LINK_TO_NOTHING and os.path.islink(entry.path):
            return
        raise entry.changed(f"cannot be reached: {error.strerror}") from error
    entry.verify_same(now)
