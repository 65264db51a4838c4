"""Records of joined catalogs, each by the reader of the catalog that it comes from."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding.formats.joined import JoinedFormat
from data_sharding.reading.record_table import RecordTable
from data_sharding.sample_random import SampleRandom


class PartReader(Protocol):
    """What is asked of the readers of parts; see `RecordReader`."""

    def unpacked(self, ids: NDArray[np.int64], random: SampleRandom | None) -> tuple[Any, NDArray[np.bool_]]: ...
    def raw(self, record_id: int) -> bytes: ...
    def reading(self) -> list[str]: ...
    def close(self) -> None: ...


class JoinedRecords:
    """Reads records of a catalog whose format is a `JoinedFormat`, by readers that `open_part` makes."""

    def __init__(self, catalog: RecordTable, open_part: Callable[[RecordTable], PartReader]) -> None:
        assert isinstance(catalog.format, JoinedFormat)
        self._part = catalog.format.parts_of(catalog.file_ids)
        self._row = np.empty(len(catalog), np.int64)  # of each record in its part
        self._readers: dict[int, PartReader] = {}  # of parts that have records
        for number in np.unique(self._part).tolist():
            rows = np.flatnonzero(self._part == number)
            self._row[rows] = np.arange(len(rows))
            self._readers[number] = open_part(_part(catalog, catalog.format, number, rows))

    def unpacked(self, ids: NDArray[np.int64], random: SampleRandom | None) -> tuple[Sequence[Any], NDArray[np.bool_]]:
        """Payloads or items of records int64[k], and which are intact: bool[k]."""
        payloads, intact = [None] * len(ids), np.empty(len(ids), np.bool_)
        parts = self._part[ids]
        for number in np.unique(parts).tolist():
            slots = np.flatnonzero(parts == number)
            some = None if random is None else random.of_rows(slots)
            read, sound = self._readers[number].unpacked(self._row[ids[slots]], some)
            intact[slots] = sound
            for slot, payload in zip(slots.tolist(), read, strict=True):
                payloads[slot] = payload
        return payloads, intact

    def raw(self, record_id: int) -> bytes:
        return self._readers[int(self._part[record_id])].raw(int(self._row[record_id]))

    def reading(self) -> list[str]:
        return [line for reader in self._readers.values() for line in reader.reading()]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _part(catalog: RecordTable, joined: JoinedFormat, number: int, rows: NDArray[np.int64]) -> RecordTable:
    first = joined.first_files[number]
    end = [*joined.first_files, len(catalog.files)][number + 1]
    has_crcs = joined.with_crcs[number] and catalog.crcs is not None
    return RecordTable(
        joined.formats[number],
        catalog.files[first:end],
        (catalog.file_ids[rows] - first).astype(np.int32),
        catalog.offsets[rows],
        catalog.lengths[rows],
        catalog.crcs[rows] if has_crcs and catalog.crcs is not None else None,
        None,
        f"{catalog.fingerprint}/{number}",
    )
