"""Parquet files, read with pyarrow: each row is a record, and row groups are decoded and kept (see `tables`).

Only files that were written with page checksums (`write_page_checksum=True`) tell most of their damage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_sharding.formats.pyarrow_extra import pyarrow_module
from data_sharding.formats.table_columns import flat_schema, flat_table
from data_sharding.formats.tables import TableFormat


class ParquetTable:
    """`TableFile` over a Parquet file. Raises ValueError: it has another number of rows than its row groups."""

    def __init__(self, file: Any, is_remote: bool) -> None:
        # pre_buffer joins a row group's columns to few requests, but reads on threads of pyarrow, from a Python object:
        # a lock for nothing where to read is to copy.
        self._file = pyarrow_module("pyarrow.parquet").ParquetFile(
            file, pre_buffer=is_remote, page_checksum_verification=True
        )
        self.schema = flat_schema(self._file.schema_arrow)
        metadata = self._file.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.counts = np.array([group.num_rows for group in groups], np.int64)
        if (self.counts < 0).any() or sum(self.counts.tolist()) != metadata.num_rows:
            raise ValueError("it has another number of rows than its row groups")
        # Not by columns: pyarrow 26 ends the process on asking for one whose statistics are damaged.
        self.sizes = np.array([max(group.total_byte_size, 1) for group in groups], np.float64)

    def read(self, group: int, names: Sequence[str]) -> Any:
        table = flat_table(self._file.read_row_group(group, columns=list(names), use_threads=False))
        if table.num_rows != self.counts[group]:
            raise ValueError(f"row group {group} has {table.num_rows} rows")
        return table.select(list(names))


@dataclass(frozen=True)
class ParquetFormat(TableFormat):
    """`RecordFormat` for Parquet files; its options are those of `TableFormat`."""

    name = "parquet"
    patterns = ("*.parquet",)
    open_table = staticmethod(ParquetTable)
