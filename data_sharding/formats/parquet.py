"""Parquet files, read with pyarrow: each row is a record.

Rows cannot be read one by one: pyarrow decodes a row group at a time. Those decoded last are kept, so data are best
shuffled in blocks (`shuffle="block"`), or written with small row groups.

A catalog's `offsets` are row numbers here, and its `lengths` nominal: the file's bytes, shared among the row groups as
their uncompressed bytes are, then evenly among rows. Together they are the file's size; where it has more rows than
bytes, some are 0.

Damage costs its row group, which a reader can mask: pyarrow decodes all of one or nothing. Only files
that were written with page checksums (`write_page_checksum=True`) tell most of it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.formats import parquet_rows
from data_sharding.formats.parquet_rows import Columns, choose_columns
from data_sharding.formats.record_format import Damaged, RecordFormat, RecordIndex, Unpacked
from data_sharding.storage import ByteSource, FileEntry, open_source


@dataclass(frozen=True)
class ParquetFormat(RecordFormat):
    """`RecordFormat` for Parquet files. Payloads are a column's bytes, or rows as serialized tf.train.Examples."""

    # the column of byte strings that are payloads; default: the only column, if it is one of byte strings, or the only
    # one beside one of integers; otherwise payloads are Examples of all columns but the labels
    data: str = ""
    # the column of integer labels; default: that of integers beside the only one of byte strings, or none
    label: str = ""
    name = "parquet"
    patterns = ("*.parquet",)
    offset_unit = "row"

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """The footer and the labels are read; with `check_data`, all that payloads are made of.

        Raises also PlanError (pyarrow is not installed) and ExampleError (columns of other types).
        """
        try:
            with source.file() as file:
                parquet = parquet_rows.open_parquet(file)
                columns = choose_columns(path, parquet.schema_arrow, self.data, self.label)
                lengths = _lengths(parquet, columns, source.size())
                rows = np.arange(len(lengths), dtype=np.int64)
                index = RecordIndex(rows, lengths, layout=columns.layout(parquet.schema_arrow))
                if columns.label:
                    index = _labelled(path, parquet, columns.label, index)
                damage = _damage(path, parquet, columns) if check_data else []
        except parquet_rows.decoding_errors() as error:
            raise _refusal(path, 0, parquet_rows.unreadable("the file", error)) from error
        return index._replace(damage=(*index.damage, *damage))

    def open(self, entry: FileEntry) -> ByteSource:
        return parquet_rows.RowSource(entry, open_source(entry), self.data, self.label)

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        return Unpacked(raw, np.array([not isinstance(payload, Damaged) for payload in raw], np.bool_))


def _lengths(parquet: Any, columns: Columns, size: int) -> NDArray[np.int64]:
    metadata = parquet.metadata
    counts = parquet_rows.group_rows(metadata)
    rows = metadata.num_rows
    if (counts < 0).any() or sum(counts.tolist()) != rows:
        raise ValueError("it has another number of rows than its row groups")
    if rows > size:
        # Equal values take next to nothing, and so does a footer that lies: the rows are counted by decoding a column.
        for group in range(len(counts)):
            parquet_rows.read_group(parquet, Columns(columns.payload[0], (), ""), group)
    # Not by columns: pyarrow 26 ends the process on asking for one whose statistics are damaged.
    sizes = [max(metadata.row_group(group).total_byte_size, 1) for group in range(len(counts))]
    weights = np.where(counts > 0, np.array(sizes, np.float64), 0)
    ends = np.concatenate([[0], np.cumsum(weights)]) / max(weights.sum(), 1) * size
    parts = [
        np.diff(np.linspace(begin, end, count + 1).astype(np.int64))
        for (begin, end), count in zip(itertools.pairwise(ends.tolist()), counts.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _labelled(path: str, parquet: Any, name: str, index: RecordIndex) -> RecordIndex:
    """The index without rows whose label is null or damaged: nothing would reveal those when they are read."""
    good, values = np.zeros(len(index.offsets), np.bool_), [np.empty(0, np.int64)]

    def look(group: int, first: int, count: int) -> list[CorruptRecordError]:
        labels = parquet_rows.read_group(parquet, Columns(name, (), ""), group).column(name)
        as_int64 = labels.drop_null().cast(parquet_rows.pyarrow_module("pyarrow").int64())
        values.append(as_int64.to_numpy().astype(np.int64))
        good[first : first + count] = valid = labels.is_valid().to_numpy()
        rows = (np.flatnonzero(~valid) + first).tolist()
        return [_refusal(path, row, f"row {row} is without a label.") for row in rows]

    damage = tuple(_look_at_groups(path, parquet, look))
    labels = np.concatenate(values)
    return index._replace(offsets=index.offsets[good], lengths=index.lengths[good], labels=labels, damage=damage)


def _damage(path: str, parquet: Any, columns: Columns) -> list[CorruptRecordError]:
    """All row groups that cannot be decoded, and all rows without a payload. A reader finds them, too."""

    def look(group: int, first: int, _: int) -> list[CorruptRecordError]:
        payloads = parquet_rows.payloads_of(parquet_rows.read_group(parquet, columns, group), columns)
        nulls = [row for row, payload in enumerate(payloads, first) if payload is None]
        return [_refusal(path, row, f"row {row} has no value in the column {columns.data!r}.") for row in nulls]

    return _look_at_groups(path, parquet, look)


def _look_at_groups(
    path: str, parquet: Any, look: Callable[[int, int, int], list[CorruptRecordError]]
) -> list[CorruptRecordError]:
    """What `look` finds in each row group, given its number, first row and rows; or why it cannot be decoded."""
    damage, first = [], 0
    for group, count in enumerate(parquet_rows.group_rows(parquet.metadata).tolist()):
        try:
            damage += look(group, first, count)
        except parquet_rows.decoding_errors() as error:
            rows = parquet_rows.named_rows(parquet, group)
            damage.append(_refusal(path, first, parquet_rows.unreadable(rows, error)))
        first += count
    return damage


def _refusal(path: str, row: int, fact: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path}: {fact[0].lower()}{fact[1:]}",
        "Nothing can be made of it.",
        "restore the file from its source, write it again, or leave such rows out (on_corrupt mask).",
        path=path,
        offset=row,
    )
