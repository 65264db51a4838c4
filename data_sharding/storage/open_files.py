"""Open data files, a bounded number of them at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from data_sharding.errors import PlanError
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.interface import ByteSource


class OpenFiles:
    """Least-recently-used cache of open files; safe to use from many threads.

    An evicted file is closed by its last user's reference going away, so a thread that still reads it is not disturbed.

    Args:
        files: all that may be opened.
        opener: opens one of them.
        max_open: files kept open at a time.
    """

    def __init__(self, files: Sequence[FileEntry], opener: Callable[[FileEntry], ByteSource], max_open: int) -> None:
        if max_open < 1:
            raise PlanError(
                f"A limit of {max_open} open files was set.", "Reading needs one.", "allow 1 open file or more."
            )
        self._files = files
        self._opener = opener
        self._max_open = max_open
        self._open: OrderedDict[int, ByteSource] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def get(self, file_id: int) -> ByteSource:
        """A file, which had the size that was indexed when it was opened.

        Raises:
            ChangedDataError: the file has gone, or is not the one that was indexed.
            PlanError: the cache is closed.
        """
        with self._lock:
            if self._closed:
                raise PlanError("The reader is closed.", "Its files cannot be read any more.", "open another reader.")
            source = self._open.pop(file_id, None)
            if source is None:
                source = self._opener(self._files[file_id])
            self._open[file_id] = source
            if len(self._open) > self._max_open:
                self._open.popitem(last=False)
        return source

    def close(self) -> None:
        """Give up all files. May be called twice."""
        with self._lock:
            self._closed = True
            self._open.clear()

    def __len__(self) -> int:
        return len(self._open)
