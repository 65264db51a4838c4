"""A catalog's columns, and what they say of a record: all that reading needs."""

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.draws.draw_rule import DrawRule
from data_sharding.errors import PlanError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.storage import FileEntry, verify_unchanged
from data_sharding.storage.redaction import redacted

OnCorrupt = Literal["raise", "mask", "quarantine"]


class Damage(NamedTuple):
    """What was found to be wrong with a file when it was indexed: where, and in which words."""

    path: str
    offset: int
    reason: str


@dataclass(frozen=True, eq=False)
class RecordTable:
    """All records of a data set; record id i is row i of the arrays, which are read-only.

    Attributes:
        format: how records are kept in the files.
        files: the data files, in the order that defines record ids.
        file_ids: int32[N], index into `files`.
        offsets: int64[N], first byte that is read for the record.
        lengths: int64[N], bytes that are read for it.
        crcs: uint32[N], checksum stored in the file for the payload; None where the format has none.
        labels: int64[N], labels kept apart from the payload; None where there are none.
        fingerprint: hex SHA-256 of what the data is (base names, sizes, record positions, stored checksums, labels) but
            not of where it is or when it was written: a copy on another host has the same one.
        damage: what a scan with `on_corrupt` other than "raise" found wrong and went on.
        draws: how often an epoch draws each record; None: once.
        row_groups: int32[N], the group of its file in which a record is decoded; None where each can be read by itself.
        source_files: the first file of each of the catalogs that were joined or mixed; empty: none were.
    """

    format: RecordFormat
    files: tuple[FileEntry, ...]
    file_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None
    labels: NDArray[np.int64] | None
    fingerprint: str
    damage: tuple[Damage, ...] = ()
    draws: DrawRule | None = None
    row_groups: NDArray[np.int32] | None = None
    source_files: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def epoch_length(self) -> int:
        """Records that an epoch draws; one that it draws twice counts twice."""
        return len(self) if self.draws is None else self.draws.length

    @functools.cached_property
    def total_bytes(self) -> int:
        return int(self.lengths.sum())

    @functools.cached_property
    def ids_by_length(self) -> NDArray[np.int64]:
        """int64[N], all ids, short records first; equally long ones in the catalog's order."""
        return np.argsort(self.lengths, kind="stable")

    @functools.cached_property
    def group_begins(self) -> NDArray[np.int64] | None:
        """int64[m], ascending: the first of each run of records of one group; None where there are no groups."""
        if self.row_groups is None:
            return None
        changes = (np.diff(self.row_groups) != 0) | (np.diff(self.file_ids) != 0)
        return np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)

    @functools.cached_property
    def lost_bytes(self) -> int:
        """Bytes of files behind a place from which on nothing can be framed: what those records took is not known.

        Of formats that count by rows, the nominal bytes of the rows that were left out.
        """
        if self.format.offset_unit == "item":
            return 0
        sizes = np.array([file.size for file in self.files], np.int64)
        sizes[sizes == 0] = sizes[sizes > 0].mean()  # of a file without content nothing is known
        if self.format.offset_unit != "byte":
            return int(sizes.sum()) - self.total_bytes
        ends = np.zeros(len(self.files), np.int64)
        np.maximum.at(ends, self.file_ids, self.offsets + self.lengths)
        number = {file.path: index for index, file in enumerate(self.files)}
        first: dict[int, int] = {}
        for damage in self.damage:
            file = number.get(damage.path, -1)  # a file of labels is none of them
            if file >= 0 and damage.offset >= ends[file]:
                first[file] = min(first.get(file, damage.offset), damage.offset)
        return sum(int(sizes[file]) - offset for file, offset in first.items())

    def describe(self, record_id: int) -> str:
        """Name a record for people: its file, and the byte at which its frame begins, or its row. Raises PlanError."""
        if not 0 <= record_id < len(self):
            fact, conflict = f"There is no record {record_id}.", f"The catalog has {len(self)} records."
            raise PlanError(fact, conflict, "use an id of this catalog.")
        path = redacted(self.files[self.file_ids[record_id]].path)
        return f"{path} @ {self.format.of_file(self.file_ids[record_id]).offset_unit} {self.frame_offset(record_id)}"

    def sources(self, ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """int64[k], from which of the catalogs that were joined each record comes; None: none were."""
        if not self.source_files:
            return None
        return np.searchsorted(np.array(self.source_files), self.file_ids[ids], side="right") - 1

    def frame_offset(self, record_id: int) -> int:
        """Byte of its file at which a record's frame, not its payload, begins."""
        return int(self.frame_offsets(np.array([record_id]))[0])

    def frame_offsets(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """`frame_offset` of records ids int64[k], int64[k]."""
        frames: NDArray[np.int64] = self.offsets[ids] - self._header_bytes[self.file_ids[ids]]
        return frames

    @functools.cached_property
    def _header_bytes(self) -> NDArray[np.int64]:
        """int64, of each file's format."""
        return np.array([self.format.of_file(number).header_bytes for number in range(len(self.files))], np.int64)

    def verify_unchanged(self) -> None:
        """Raise ChangedDataError unless every file still has the size and version that it was indexed with."""
        for number, file in enumerate(self.files):
            if self.format.of_file(number).is_stored:
                verify_unchanged(file)
