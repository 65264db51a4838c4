"""Memory maps of data files, opened on demand, a bounded number of them at a time."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from data_sharding.errors import PlanError
from data_sharding.file_entry import FileEntry


class MappedFiles:
    """Least-recently-used cache of read-only maps; safe to use from many threads.

    An evicted map is closed by its last user's reference going away, so a thread that still reads it is not disturbed.
    """

    def __init__(self, files: Sequence[FileEntry], max_open: int) -> None:
        if max_open < 1:
            raise PlanError(
                f"A limit of {max_open} open files was set.", "Reading needs one.", "allow 1 open file or more."
            )
        self._files = files
        self._max_open = max_open
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def get(self, file_id: int) -> mmap.mmap:
        """The map of a file, which has the size that was indexed.

        The size is asked for on every call: to read a map beyond the end of a file cut short kills the process.

        Raises:
            ChangedDataError: the file has gone, or is not the one that was indexed.
            PlanError: the maps are closed.
        """
        with self._lock:
            if self._closed:
                raise PlanError("The reader is closed.", "Its files cannot be read any more.", "open another reader.")
            view = self._maps.pop(file_id, None) or _open(self._files[file_id])
            self._maps[file_id] = view
            if len(self._maps) > self._max_open:
                self._maps.popitem(last=False)
            if view.size() != self._files[file_id].size:
                raise self._files[file_id].changed(
                    f"had {self._files[file_id].size} bytes when it was indexed and has {view.size()} now"
                )
            return view

    def close(self) -> None:
        """Give up all files. May be called twice."""
        with self._lock:
            self._closed = True
            self._maps.clear()

    def __len__(self) -> int:
        return len(self._maps)


def _open(entry: FileEntry) -> mmap.mmap:
    try:
        with open(entry.path, "rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != (entry.size, entry.mtime_ns):
                raise entry.changed("has another size or modification time than when it was indexed")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise entry.changed(f"cannot be reached: {error.strerror}") from error
