"""Decoded groups of rows in the cache on a local disk, as Arrow IPC streams that are memory-mapped.

To decode a group of Parquet takes longer than to read its columns from the page cache. In an order that comes back to
each group in every step, groups that do not fit into the memory for them would be decoded in each step.
"""

import json
from collections.abc import Sequence
from typing import Any

import filelock

from data_sharding.errors import ShardingError
from data_sharding.formats.pyarrow_extra import pyarrow_module
from data_sharding.storage import FileEntry
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.mapped_file import open_local
from data_sharding.storage.torn_maps import ReadOnlyMap


class GroupsOnDisk:
    """Groups of one file; safe to use from one thread at a time, and inside of `watching_maps`.

    A file of the cache is compared with its checksum when it is mapped. It belongs to one version of the data file.
    """

    def __init__(self, entry: FileEntry, cache: FileCache) -> None:
        self._entry, self._cache = entry, cache

    def find(self, group: int, names: Sequence[str]) -> tuple[Any, ReadOnlyMap] | None:
        """The table of these columns of a group, and the map that it is over; None: it is not there."""
        place = self._place(group, names)
        if (copy := self._cache.find(place)) is None or self._cache.forget_damaged(place):
            return None
        try:
            content = open_local(copy).map
        except ShardingError:  # it was removed meanwhile
            return None
        arrow, ipc = pyarrow_module("pyarrow"), pyarrow_module("pyarrow.ipc")
        return ipc.open_stream(arrow.BufferReader(arrow.py_buffer(content.bytes))).read_all(), content

    def keep(self, group: int, table: Any) -> None:
        """Write a table to the disk, if there is room, and nobody else does so now."""
        arrow, ipc = pyarrow_module("pyarrow"), pyarrow_module("pyarrow.ipc")
        sink = arrow.BufferOutputStream()
        with ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        try:
            self._cache.keep(self._place(group, table.column_names), memoryview(sink.getvalue()))
        except filelock.Timeout:
            return

    def give_up(self, group: int, names: Sequence[str]) -> None:
        """Remove a group from the disk."""
        self._cache.open().remove(self._place(group, names))

    def _place(self, group: int, names: Sequence[str]) -> FileEntry:
        name = f"{self._entry.path}#decoded/{group}/{json.dumps(list(names))}"
        return FileEntry(name, self._entry.size, self._entry.version)
