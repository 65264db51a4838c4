"""Which columns of a Parquet file make a record and which one is its label, and its rows, a row group at a time."""

import functools
import importlib
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import example
from data_sharding.errors import CorruptRecordError, ExampleError, MissingDataError, PlanError
from data_sharding.formats.record_format import Damaged
from data_sharding.storage import ByteSource, FileEntry
from data_sharding.storage.byte_source import SourceFile

_BYTES_KEPT: Final = 256 << 20

_BINARY: Final = re.compile(r"(large_)?binary$|fixed_size_binary\[")
_INTEGER: Final = re.compile(r"u?int(8|16|32|64)$")
_FEATURE: Final = re.compile(rf"{_BINARY.pattern}|{_INTEGER.pattern}|(bool|halffloat|float|double|(large_)?string)$")
_HOLDS_VALUES: Final = re.compile(r"((large_|fixed_size_)?list|dictionary)<")


class Columns(NamedTuple):
    """Names of the columns to use; a field of a struct is called "column.field"."""

    data: str  # the column of byte strings that are the payloads; empty: payloads are Examples of `features`
    features: tuple[str, ...]  # the columns of an Example
    label: str  # the column of labels; empty: none

    @property
    def payload(self) -> list[str]:
        """What has to be read for payloads."""
        return [self.data] if self.data else list(self.features)

    def layout(self, schema: Any) -> frozenset[str]:
        """The columns with their types. What Arrow alone tells apart (large types, dictionaries) is one type here."""
        types = [(field.name, field.type) for top in schema for field in top.flatten()]
        values = {name: kind.value_type if str(kind).startswith("dictionary<") else kind for name, kind in types}
        kinds = {name: str(kind).replace("large_", "") for name, kind in values.items()}
        used = {f"{name} {kinds[name]}" for name in self.payload}
        return frozenset(used | ({f"label {self.label} {kinds[self.label]}"} if self.label else set()))


def choose_columns(path: str, schema: Any, data: str, label: str) -> Columns:
    """The columns for a pyarrow schema and a user's choice; an empty name is none. See `ParquetFormat`.

    Raises MissingDataError, CorruptRecordError or ExampleError.
    """
    kinds = {field.name: field.type for top in schema for field in top.flatten()}
    if len(kinds) != sum(len(top.flatten()) for top in schema):
        fact = f"{path}, a Parquet file by byte offset 0, has two columns of the same name."
        conflict = f"They cannot be told apart among {', '.join(kinds)}."
        raise CorruptRecordError(fact, conflict, "write it again with distinct names.", path=path)
    binary = [name for name, kind in kinds.items() if _BINARY.match(str(kind))]
    integers = [name for name, kind in kinds.items() if _INTEGER.match(str(kind))]
    if data and data not in binary:
        raise _no_column(path, kinds, data, "byte strings")
    if label and label not in integers:
        raise _no_column(path, kinds, label, "integers")
    if not data and not label and len(kinds) == 2 and len(binary) == len(integers) == 1:
        label = integers[0]
    features = tuple(name for name in kinds if name != label)
    if not features:
        raise _no_column(path, kinds, "", "data")
    if data or (len(features) == 1 and binary):
        return Columns(data or features[0], (), label)
    for name in features:
        kind = kinds[name]
        if not _FEATURE.match(str(kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind)):
            raise ExampleError(
                f"The column {name!r} of {path} has the type {kind}.",
                "A row of several columns becomes a tf.train.Example, which holds bytes, integers and floats only.",
                "name a column of byte strings with the option data, or write the table without this column.",
            )
    return Columns("", features, label)


def _float64_columns(schema: Any) -> frozenset[str]:
    """Columns of 64-bit floats, or of lists of them."""
    kinds = {field.name: field.type for field in schema}
    inner = {name: kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind for name, kind in kinds.items()}
    return frozenset(name for name, kind in inner.items() if str(kind) == "double")


def _no_column(path: str, kinds: dict[str, Any], name: str, wanted: str) -> MissingDataError:
    there = ", ".join(f"{column} ({kind})" for column, kind in list(kinds.items())[:20])
    fact = f"{path} has no column {name!r} of {wanted}." if name else f"{path} has no column of {wanted}."
    return MissingDataError(fact, f"Its columns are {there or 'none'}.", "name them with the options data and label.")


class RecentGroups:
    """Says which decoded row groups of all open files are kept: those used last that fit into `limit` bytes together.

    A file that nobody holds any more takes its row groups along; they count until their turn to be dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sizes: OrderedDict[tuple[weakref.ref[RowSource], int], int] = OrderedDict()
        self.kept = 0

    def used(self, source: "RowSource", group: int, size: int) -> None:
        """Note that a file's row group of `size` bytes is used, and have others dropped if it is too much."""
        with self._lock:
            key = weakref.ref(source), group
            self.kept += size - self._sizes.pop(key, 0)
            self._sizes[key] = size
            while self.kept > self._limit and len(self._sizes) > 1:
                (owner, oldest), freed = self._sizes.popitem(last=False)
                self.kept -= freed
                if (other := owner()) is not None:
                    other.drop(oldest)


_RECENT: Final = RecentGroups(_BYTES_KEPT)
"""Of this process: readers for training and for validation are open at the same time."""


class RowSource:
    """A `ByteSource` whose spans are rows: span [i, j) is the payload of row i, whatever j is; or a `Damaged` one."""

    def __init__(self, entry: FileEntry, source: ByteSource, data: str, label: str) -> None:
        self._entry, self._source, self._chosen = entry, source, (data, label)
        self._lock = threading.Lock()
        self._groups: dict[int, Any] = {}

    def size(self) -> int:
        return self._source.size()

    def __getitem__(self, span: slice) -> bytes:
        return self.spans([span.start or 0], [span.stop])[0]

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:  # noqa: ARG002
        """The payloads of rows `begins`; each row group is decoded once. Raises ChangedDataError."""
        rows = np.asarray(begins, np.int64)
        # One lock for all: threads that wait for the same row group would each decode it otherwise.
        with self._lock:
            try:
                parquet, columns, firsts = self._opened
            except decoding_errors() as error:
                return [Damaged.because(unreadable("The file", error))] * len(rows)
            payloads: list[bytes] = [b""] * len(rows)
            groups = np.searchsorted(firsts, rows, "right") - 1
            for group in np.unique(groups).tolist():
                slots = np.flatnonzero(groups == group)
                taken = self._take(parquet, columns, group, rows[slots] - firsts[group])
                for slot, payload in zip(slots.tolist(), taken, strict=True):
                    payloads[slot] = payload
            return payloads

    def file(self) -> BinaryIO:
        return self._source.file()

    def drop(self, group: int) -> None:
        self._groups.pop(group, None)

    @functools.cached_property
    def _opened(self) -> tuple[Any, Columns, NDArray[np.int64]]:
        """The file, its columns, and the first row of each row group."""
        parquet = open_parquet(SourceFile(lambda begin, end: self._source[begin:end], self._source.size()))
        columns = choose_columns(self._entry.path, parquet.schema_arrow, *self._chosen)
        counts = group_rows(parquet.metadata)
        return parquet, columns, np.cumsum(counts) - counts

    def _take(self, parquet: Any, columns: Columns, group: int, rows: NDArray[np.int64]) -> list[bytes]:
        table = self._group(parquet, columns, group)
        if isinstance(table, Damaged):
            return [table] * len(rows)
        try:
            payloads = payloads_of(table.take(rows), columns)
        except decoding_errors() as error:  # among others, a row that is not there
            return [Damaged.because(unreadable("The row", error))] * len(rows)
        null = Damaged.because(f"The row has no value in the column {columns.data!r}.")
        return [null if payload is None else payload for payload in payloads]

    def _group(self, parquet: Any, columns: Columns, group: int) -> Any:
        """A row group as a Table, or as a `Damaged` span that says what is wrong with it."""
        table = self._groups.get(group)
        if table is None:
            try:
                table = read_group(parquet, columns, group)
            except decoding_errors() as error:
                table = Damaged.because(unreadable(named_rows(parquet, group), error))
            if (size := self._source.size()) != self._entry.size:
                raise self._entry.changed(f"had {self._entry.size} bytes when it was indexed and has {size} now")
            self._groups[group] = table
        _RECENT.used(self, group, getattr(table, "nbytes", 0))
        return table


def open_parquet(file: Any) -> Any:
    """A pyarrow ParquetFile. Raises what pyarrow does; PlanError without pyarrow."""
    # pre_buffer reads on pyarrow's threads, from a Python object: a lock for nothing.
    return pyarrow_module("pyarrow.parquet").ParquetFile(file, pre_buffer=False, page_checksum_verification=True)


def pyarrow_module(module: str) -> Any:
    """A module of pyarrow, imported on first use: it is an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        fact = "pyarrow, which reads Parquet files, is not installed."
        raise PlanError(fact, "They cannot be read without it.", "run `pip install 'hvdtrain[parquet]'`.") from error


def decoding_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises for damaged files, found by trying."""
    arrow: type[Exception] = pyarrow_module("pyarrow").ArrowException
    return (arrow, OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError)


def unreadable(what: str, error: Exception) -> str:
    """A sentence that says that `what` cannot be decoded, and why."""
    reason = str(error).partition("\n")[0].rstrip(".")
    return f"{what} cannot be read as Parquet ({type(error).__name__}: {reason})."


def named_rows(parquet: Any, group: int) -> str:
    """The rows of a row group, for people."""
    counts = group_rows(parquet.metadata)
    first = int(counts[:group].sum())
    return f"Rows {first} to {first + int(counts[group]) - 1} (row group {group})"


def group_rows(metadata: Any) -> NDArray[np.int64]:
    return np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], np.int64)


def read_group(parquet: Any, columns: Columns, group: int) -> Any:
    """The columns that payloads are made of, as a pyarrow Table. Raises what pyarrow does."""
    table = parquet.read_row_group(group, columns=columns.payload, use_threads=False).flatten()
    if table.num_rows != parquet.metadata.row_group(group).num_rows:
        raise ValueError(f"row group {group} has {table.num_rows} rows")
    return table.select(columns.payload)


def payloads_of(table: Any, columns: Columns) -> list[bytes | None]:
    """The payload of each row; None for a row without one."""
    if not columns.data:
        doubles = _float64_columns(table.schema)
        return [example.encode(_features(row, doubles), keep_float64=True) for row in table.to_pylist()]
    payloads: list[bytes | None] = table.column(columns.data).to_pylist()
    return payloads


def _features(row: dict[str, Any], doubles: frozenset[str]) -> dict[str, Any]:
    # An Example has no nulls; a feature without a value has no kind.
    features = {name: [] if value is None else value for name, value in row.items()}
    return {name: np.asarray(v) if name in doubles and v != [] else v for name, v in features.items()}
