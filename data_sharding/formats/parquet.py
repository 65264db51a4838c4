"""Parquet files, read with pyarrow: each row is a record.

Rows cannot be read one by one: pyarrow decodes a row group at a time. Those decoded last are kept, so data are best
shuffled in blocks (`shuffle="block"`), or written with small row groups.

A catalog's `offsets` are row numbers here, and its `lengths` nominal: the file's bytes, shared among the row groups as
their uncompressed bytes are, then evenly among rows. Both stay inside the file's size, as those of other formats do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.formats.interface import RecordIndex, Unpacked
from data_sharding.formats.parquet_columns import Columns, choose_columns
from data_sharding.formats.parquet_rows import (
    RowSource,
    group_rows,
    open_parquet,
    payloads_of,
    pyarrow_module,
    read_group,
    refusal,
    refusing,
)
from data_sharding.formats.unchecked import all_intact
from data_sharding.storage import ByteSource, FileEntry, open_source


@final
@dataclass(frozen=True)
class ParquetFormat:
    """`RecordFormat` for Parquet files. Payloads are a column's byte strings, or rows as serialized tf.train.Examples.

    Attributes:
        data: the column of byte strings that are payloads; left out: the only column, if it is one of byte strings, or
            the only one beside one of integers; otherwise payloads are Examples of all columns but the labels.
        label: the column of integer labels; left out: that of integers beside the only one of byte strings, or none.
    """

    data: str = ""
    label: str = ""
    name: str = "parquet"
    patterns: tuple[str, ...] = ("*.parquet",)
    recursive: bool = False
    has_crc: bool = False
    header_bytes: int = 0
    offset_unit: str = "row"

    def file_labels(self, paths: Sequence[str]) -> None:  # noqa: ARG002
        return None

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """The footer and the labels are read; with `check_data`, all that payloads are made of.

        Raises:
            PlanError: pyarrow is not installed.
            MissingDataError, ExampleError: the columns are not there, or of other types.
            CorruptRecordError: the file is no Parquet file, is damaged, or has more rows than bytes.
        """
        with source.file() as file, refusing(path, 0):
            parquet = open_parquet(file)
            columns = choose_columns(path, parquet.schema_arrow, self.data, self.label)
            lengths = _lengths(path, parquet.metadata, source.size())
            layout = columns.layout(parquet.schema_arrow)
            index = RecordIndex(np.arange(len(lengths), dtype=np.int64), lengths, layout=layout)
            if columns.label:
                index = _labelled(path, index, _column(parquet.read([columns.label], use_threads=False), columns.label))
            damage = _damaged_groups(path, parquet, columns) if check_data else []
        return index._replace(damage=(*index.damage, *damage))

    def open(self, entry: FileEntry) -> ByteSource:
        return RowSource(entry.path, open_source(entry), self.data, self.label)

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        return all_intact(raw)


def _lengths(path: str, metadata: Any, size: int) -> NDArray[np.int64]:
    counts = group_rows(metadata)
    rows = metadata.num_rows
    if (counts < 0).any() or sum(counts.tolist()) != rows:
        raise refusal(path, 0, "has another number of rows than its row groups")
    if rows > size:
        raise refusal(path, 0, f"has {rows} rows in {size} bytes, more than can be numbered by bytes")
    # Not by columns: pyarrow 26 ends the process on asking for one whose statistics are damaged.
    weights = [max(metadata.row_group(group).total_byte_size, 0) for group in range(len(counts))]
    share = size / max(sum(weights), 1)
    lengths = [
        int(min(weight * share, size)) // max(count, 1) for weight, count in zip(weights, counts.tolist(), strict=True)
    ]
    nominal: NDArray[np.int64] = np.minimum(np.repeat(np.array(lengths, np.int64), counts), size - np.arange(rows))
    return nominal


def _labelled(path: str, index: RecordIndex, labels: Any) -> RecordIndex:
    """The index without rows whose label is null: nothing would reveal those when they are read."""
    if len(labels) != len(index.offsets):
        raise refusal(path, 0, f"has {len(index.offsets)} rows but {len(labels)} labels")
    good = labels.is_valid().to_numpy()
    damage = tuple(refusal(path, row, "has a row without a label") for row in np.flatnonzero(~good).tolist())
    values = labels.drop_null().cast(pyarrow_module("pyarrow").int64()).to_numpy().astype(np.int64)
    return index._replace(offsets=index.offsets[good], lengths=index.lengths[good], labels=values, damage=damage)


def _damaged_groups(path: str, parquet: Any, columns: Columns) -> list[CorruptRecordError]:
    damage, first = [], 0
    for group, count in enumerate(group_rows(parquet.metadata).tolist()):
        try:
            with refusing(path, first):
                list(payloads_of(read_group(parquet, columns, group), columns))
        except CorruptRecordError as error:
            damage.append(error)
        first += count
    return damage


def _column(table: Any, name: str) -> Any:
    return table.flatten().column(name)
