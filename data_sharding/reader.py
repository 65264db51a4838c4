"""Records by id, checked against their stored CRC."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.errors import CorruptRecordError, PlanError, ShardingError
from data_sharding.mapped_files import MappedFiles
from data_sharding.tfrecord import TFRECORD


class RecordReader:
    """Reads records of a catalog at random, a batch at a time. Safe to use from many threads; a context manager.

    Files are memory-mapped on first use. That is twice as fast as a read call per record. Its price: the kernel kills a
    process that touches a map beyond the end of a file cut short meanwhile. File sizes are therefore compared with the
    catalog before every batch, which leaves only a truncation during the batch itself.

    Args:
        catalog: the records.
        check_crc: compare every payload's checksum with the catalog's.
        max_open_files: files kept mapped at a time; each takes one file descriptor.
    """

    def __init__(self, catalog: Catalog, check_crc: bool = True, max_open_files: int = 256) -> None:
        self.catalog = catalog
        self._check_crc = check_crc
        self._files = MappedFiles(catalog.files, max_open_files)

    def read(self, ids: NDArray[np.int64]) -> list[bytes]:
        """The payloads of records ids int64[k], in the order of `ids`, which may repeat.

        Raises:
            CorruptRecordError: a payload does not match its stored CRC; names file, byte offset and record id.
            ChangedDataError: a file has gone or is not the one that was indexed.
            PlanError: an id is not in the catalog, or the reader is closed.
        """
        ids = self._checked_ids(ids)
        payloads = self._payloads(ids)
        if self._check_crc:
            wrong = np.flatnonzero(TFRECORD.checksums(payloads) != self.catalog.crcs[ids])
            if wrong.size:
                raise self._damaged(int(ids[wrong[0]]))
        return payloads

    def close(self) -> None:
        """Give up all files. May be called twice."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _payloads(self, ids: NDArray[np.int64]) -> list[bytes]:
        # File by file, so that each is looked up once a batch; within a file in the order of the bytes.
        slots = np.argsort(ids, kind="stable")
        ordered = ids[slots]
        files, begins = self.catalog.file_ids[ordered], self.catalog.offsets[ordered]
        ends = begins + self.catalog.lengths[ordered]
        payloads = [b""] * len(ids)
        current = -1
        for slot, file, begin, end in zip(slots.tolist(), files.tolist(), begins.tolist(), ends.tolist(), strict=True):
            if file != current:
                current, view = file, self._files.get(file)
            payloads[slot] = view[begin:end]
        return payloads

    def _checked_ids(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.asarray(ids, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= len(self.catalog)):
            raise PlanError(
                f"Records from {ids.min()} to {ids.max()} were asked for.",
                f"The catalog has records 0 to {len(self.catalog) - 1}.",
                "use the plan that was made for this catalog.",
            )
        return ids

    def _damaged(self, record_id: int) -> ShardingError:
        """The error for a payload with a wrong CRC: a file that changed explains it better than damage does."""
        entry = self.catalog.files[self.catalog.file_ids[record_id]]
        entry.verify_unchanged()
        offset = self.catalog.frame_offset(record_id)
        return CorruptRecordError(
            f"Record {record_id}, in {entry.path} at byte offset {offset}, is damaged.",
            "Its data does not match its stored CRC.",
            "restore the file from its source.",
            path=entry.path,
            offset=offset,
        )
