"""Bytes of files, wherever they are: one file, spans of several in one go, and a bounded number of open ones."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from data_sharding.checks import at_least
from data_sharding.errors import OpenFilesLimitError, PlanError
from data_sharding.storage.file_entry import FileEntry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
R = TypeVar("R")


class ByteSource(Protocol):
    """A file of fixed size, open for reading at random from many threads."""

    def size(self) -> int:
        """Bytes that the file has now: asked again on every call where that is cheap."""

    def __getitem__(self, span: slice) -> bytes:
        """Bytes [begin, end), cut at the file's end like any slice. No step, no negative bounds."""

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Bytes [begins[i], ends[i]) for each i; remote files are asked for all at once."""

    def file(self) -> BinaryIO:
        """A seekable view for libraries that want a file; starts at byte 0, and closing it closes nothing else."""


class SourceFile(io.RawIOBase):
    """A seekable, read-only file over a function, which returns bytes [begin, end). It need not be closed."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, name: str = "") -> None:
        self._fetch, self._size, self.name = fetch, size, name
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        content = self._fetch(self._at, end) if end > self._at else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)


def for_files(work: Callable[[T], R], files: Iterable[T], threads: int) -> list[R]:
    """What `work` gives for each, in order: for so many at the same time, which is for files behind a URL.

    Otherwise one after the other, so that not all need be open together. Those of a shuffled batch are as many as its
    records: it would wait for one answer after the other.
    """
    together = list(files) if threads > 1 else []
    if len(together) < 2:
        return [work(file) for file in together or files]
    with ThreadPoolExecutor(min(threads, len(together)), thread_name_prefix="data_sharding-files") as pool:
        return list(pool.map(work, together))


class OpenFiles:
    """The `max_open` files used last, open; safe to use from many threads.

    Another is closed when its last reader has dropped it, so that a thread that still reads it is not disturbed.
    """

    def __init__(self, files: Sequence[FileEntry], opener: Callable[[FileEntry], Any], max_open: int) -> None:
        at_least(1, "max_open_files", max_open, "Reading needs one open file.")
        self._open = functools.lru_cache(max_open)(lambda file_id: opener(files[file_id]))
        self._lock = threading.Lock()
        self._closed = False

    def get(self, file_id: int) -> Any:
        """A file, which had the size that was indexed when it was opened.

        Raises ChangedDataError, OpenFilesLimitError or PlanError.
        """
        with self._lock:
            if self._closed:
                raise PlanError("The reader is closed.", "Its files cannot be read any more.", "open another reader.")
            try:
                return self._open(file_id)
            except OpenFilesLimitError:
                if not self._open.cache_info().currsize:
                    raise
                self._open.cache_clear()
                return self._open(file_id)

    def close(self) -> None:
        """Give up all files. May be called twice."""
        with self._lock:
            self._closed = True
            self._open.cache_clear()
