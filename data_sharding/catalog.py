"""The catalog: where every record of a data set is, and proof that it still is what was indexed."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_sharding import catalog_file
from data_sharding.errors import MissingDataError, PlanError
from data_sharding.file_entry import FileEntry
from data_sharding.input_files import Paths, find_files
from data_sharding.record_format import RecordIndex
from data_sharding.tfrecord import TFRECORD


@dataclass(frozen=True, eq=False)
class Catalog:
    """All records of a data set; record id i is row i of the arrays, which are read-only.

    Attributes:
        files: the data files, in the order that defines record ids.
        file_ids: int32[N], index into `files`.
        offsets: int64[N], first payload byte in the file.
        lengths: int64[N], payload bytes.
        crcs: uint32[N], checksum stored in the file for the payload.
        fingerprint: hex SHA-256 of what the data is (base names, sizes, record positions, stored checksums) but not of
            where it lies or when it was written: a copy on another host has the same one.
    """

    files: tuple[FileEntry, ...]
    file_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32]
    fingerprint: str

    @classmethod
    def index(cls, paths: Paths, check_data: bool = False) -> Self:
        """Scan data files: a file, a folder (its *.tfrecord and *.tfrecords files), a glob, or a sequence of these.

        Record ids follow the order of the arguments, within each the sorted paths, within a file the file.

        Args:
            check_data: also compute every payload's checksum, which reads all data once.

        Raises:
            MissingDataError: a path does not exist, matches no file, or holds no record.
            CorruptRecordError: a file's framing is damaged or, with `check_data`, a payload is.
            ChangedDataError: a file changed while it was scanned.
            PlanError: two paths lead to the same file.
        """
        names = find_files(paths, TFRECORD.suffixes)
        scanned = [_scan_unchanged(name, check_data) for name in names]
        counts = [len(index.offsets) for _, index in scanned]
        return cls._checked(
            tuple(entry for entry, _ in scanned),
            np.repeat(np.arange(len(names), dtype=np.int32), counts),
            np.concatenate([index.offsets for _, index in scanned]),
            np.concatenate([index.lengths for _, index in scanned]),
            np.concatenate([index.crcs for _, index in scanned]),
        )

    @classmethod
    def _checked(
        cls,
        files: tuple[FileEntry, ...],
        file_ids: NDArray[np.int32],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        crcs: NDArray[np.uint32],
    ) -> Self:
        columns = (file_ids, offsets, lengths, crcs)
        for column in columns:
            column.setflags(write=False)
        return cls(files, *columns, fingerprint=_fingerprint(files, *columns))

    def __len__(self) -> int:
        return len(self.offsets)

    @functools.cached_property
    def total_bytes(self) -> int:
        """Payload bytes of all records together."""
        return int(self.lengths.sum())

    def describe(self, record_id: int) -> str:
        """Name a record for people: its file and the byte at which its frame begins.

        Raises:
            PlanError: there is no such record.
        """
        if not 0 <= record_id < len(self):
            raise PlanError(
                f"There is no record {record_id}.",
                f"The catalog has {len(self)} records.",
                "use an id of this catalog.",
            )
        return f"{self.files[self.file_ids[record_id]].path} @ byte {self.frame_offset(record_id)}"

    def frame_offset(self, record_id: int) -> int:
        """Byte of its file at which a record's frame, not its payload, begins."""
        return int(self.offsets[record_id]) - TFRECORD.header_bytes

    def verify_unchanged(self) -> None:
        """Check that every file still has the size and modification time it was indexed with.

        Raises:
            ChangedDataError: naming the first file that does not.
        """
        for file in self.files:
            file.verify_unchanged()

    def save(self, path: str | Path) -> None:
        """Write the catalog to an .npz file, whole or not at all. Nothing in it is pickled."""
        columns = {name: getattr(self, name) for name in catalog_file.COLUMNS}
        catalog_file.write(path, TFRECORD.name, self.fingerprint, self.files, columns)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved catalog and check it against its own fingerprint; the data files are not touched.

        Raises:
            MissingDataError: there is no such file.
            CatalogError: the file is damaged, or is no catalog of this version.
        """
        stored = catalog_file.read(path, TFRECORD)
        catalog = cls._checked(stored.files, **stored.columns)
        if catalog.fingerprint != stored.fingerprint:
            raise catalog_file.damaged(path, "its content does not match its fingerprint")
        return catalog


def _scan_unchanged(path: str, check_data: bool) -> tuple[FileEntry, RecordIndex]:
    try:
        entry = FileEntry.of(path)
    except OSError as error:
        raise MissingDataError(
            f"{path} cannot be opened: {error.strerror}.", "Its records cannot be read.", "check the path."
        ) from error
    index = TFRECORD.scan(path, check_data)
    entry.verify_unchanged()
    return entry, index


def _fingerprint(files: Sequence[FileEntry], *columns: NDArray[np.generic]) -> str:
    digest = hashlib.sha256(b"data_sharding.catalog/1")
    for file in files:
        name = os.fsencode(os.path.basename(file.path))
        digest.update(b"%d %d " % (len(name), file.size) + name)
    for column in columns:
        digest.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()
