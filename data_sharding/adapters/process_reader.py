"""A reader for objects that frameworks copy into worker processes."""

from __future__ import annotations

import os
from typing import Any, final

from data_sharding.catalog import Catalog, OnCorrupt
from data_sharding.loading.record_reader import RecordReader


@final
class ProcessReader:
    """The catalog, and this process's own `RecordReader` over it.

    It can be pickled, and survives a fork: open files stay behind, and the other process opens its own on first use.

    Args:
        catalog, check_crc, max_open_files, on_corrupt: as for `RecordReader`.
    """

    def __init__(
        self, catalog: Catalog, check_crc: bool = True, max_open_files: int = 256, on_corrupt: OnCorrupt = "raise"
    ) -> None:
        self.catalog = catalog
        self._options = (check_crc, max_open_files, on_corrupt)
        self._opened: tuple[int, RecordReader] | None = None

    def get(self) -> RecordReader:
        """The reader of the process that asks."""
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            # Two threads may both come here first: one of the two readers is then dropped, unused or not.
            opened = self._opened = (os.getpid(), RecordReader(self.catalog, *self._options))
        return opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}
