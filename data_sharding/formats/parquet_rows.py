"""Rows of an open Parquet file, a row group at a time."""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, final

import numpy as np
from numpy.typing import NDArray

from data_sharding import example
from data_sharding.errors import CorruptRecordError, PlanError
from data_sharding.formats.parquet_columns import Columns, choose_columns
from data_sharding.storage import ByteSource

_BYTES_KEPT: Final = 256 << 20


@final
class RowSource:
    """A `ByteSource` whose spans are rows: span [i, j) is the payload of row i, whatever j is."""

    def __init__(self, path: str, source: ByteSource, data: str, label: str) -> None:
        self._path = path
        self._source = source
        self._chosen = data, label
        self._lock = threading.Lock()
        self._opened: tuple[Any, Columns, NDArray[np.int64]] | None = None
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._kept = 0

    def size(self) -> int:
        return self._source.size()

    def __getitem__(self, span: slice) -> bytes:
        return self.spans([span.start or 0], [span.stop])[0]

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:  # noqa: ARG002
        """The payloads of rows `begins`; each row group is decoded once.

        Raises:
            CorruptRecordError: a row group is damaged, or a row has no value.
        """
        # One lock for all: threads that wait for the same row group would each decode it otherwise.
        with self._lock, refusing(self._path, min(begins, default=0)):
            parquet, columns, firsts = self._open()
            rows = np.asarray(begins, np.int64)
            groups = np.searchsorted(firsts, rows, "right") - 1
            payloads = [b""] * len(rows)
            for group in np.unique(groups).tolist():
                slots = np.flatnonzero(groups == group)
                table = self._group(parquet, columns, group).take(rows[slots] - firsts[group])
                for slot, payload in zip(slots.tolist(), payloads_of(table, columns), strict=True):
                    payloads[slot] = payload
            return payloads

    def file(self) -> BinaryIO:
        return self._source.file()

    def close(self) -> None:
        with self._lock:
            self._opened = None
            self._groups.clear()
            self._kept = 0
        self._source.close()

    def _open(self) -> tuple[Any, Columns, NDArray[np.int64]]:
        if self._opened is None:
            parquet = open_parquet(_SourceFile(self._source))
            columns = choose_columns(self._path, parquet.schema_arrow, *self._chosen)
            counts = group_rows(parquet.metadata)
            self._opened = parquet, columns, np.cumsum(counts) - counts
        return self._opened

    def _group(self, parquet: Any, columns: Columns, group: int) -> Any:
        table = self._groups.pop(group, None)
        if table is None:
            table = read_group(parquet, columns, group)
            self._kept += table.nbytes
        self._groups[group] = table
        while self._kept > _BYTES_KEPT and len(self._groups) > 1:
            self._kept -= self._groups.popitem(last=False)[1].nbytes
        return table


class _SourceFile(io.RawIOBase):
    """A source as a file that takes no descriptor and need not be closed."""

    def __init__(self, source: ByteSource) -> None:
        self._bytes = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._bytes.size()}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._bytes.size() if size is None or size < 0 else min(self._position + size, self._bytes.size())
        content = self._bytes[self._position : max(end, self._position)]
        self._position += len(content)
        return content


def open_parquet(file: Any) -> Any:
    """A pyarrow ParquetFile. Raises what pyarrow does; PlanError without pyarrow."""
    # pre_buffer reads on pyarrow's threads, from a Python object: a lock for nothing.
    return pyarrow_module("pyarrow.parquet").ParquetFile(file, pre_buffer=False, page_checksum_verification=True)


def pyarrow_module(module: str) -> Any:
    """A module of pyarrow, imported on first use: it is an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlanError(
            "pyarrow, which reads Parquet files, is not installed.",
            "They cannot be read without it.",
            "run `pip install 'hvdtrain[parquet]'`.",
        ) from error


@contextlib.contextmanager
def refusing(path: str, row: int) -> Iterator[None]:
    """Turn what pyarrow raises for damaged files, found by trying, into a CorruptRecordError."""
    try:
        yield
    except (
        pyarrow_module("pyarrow").ArrowException,
        OSError,
        ValueError,
        KeyError,
        OverflowError,
        MemoryError,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise refusal(path, row, f"cannot be read as Parquet ({type(error).__name__}: {reason})") from error


def group_rows(metadata: Any) -> NDArray[np.int64]:
    """Rows of each row group."""
    return np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], np.int64)


def read_group(parquet: Any, columns: Columns, group: int) -> Any:
    """The columns that payloads are made of, as a pyarrow Table. Raises what pyarrow does."""
    table = parquet.read_row_group(group, columns=columns.payload, use_threads=False).flatten()
    if table.num_rows != parquet.metadata.row_group(group).num_rows:
        raise ValueError(f"row group {group} has {table.num_rows} rows")
    return table.select(columns.payload)


def payloads_of(table: Any, columns: Columns) -> list[bytes]:
    """The payload of each row. Raises ValueError for a row without one."""
    if not columns.data:
        # An Example has no nulls; a feature without a value has no kind.
        rows = ({name: [] if value is None else value for name, value in row.items()} for row in table.to_pylist())
        return [example.encode(row) for row in rows]
    column = table.column(columns.data)
    if column.null_count:
        raise ValueError(f"a row has no value in the column {columns.data!r}")
    payloads: list[bytes] = column.to_pylist()
    return payloads


def refusal(path: str, row: int, reason: str) -> CorruptRecordError:
    """The error for damage at or after a row."""
    return CorruptRecordError(
        f"{path}, at row {row} or later, {reason}.",
        "Its rows cannot be read.",
        "restore the file from its source, or write it again.",
        path=path,
        offset=row,
    )
