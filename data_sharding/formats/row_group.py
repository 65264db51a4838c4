"""The decoded rows of a group (of Parquet: a row group, of Arrow: a record batch), and the payload of each."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from data_sharding import example
from data_sharding.errors import ExampleError
from data_sharding.formats.table_columns import Columns, float64_columns
from data_sharding.storage.torn_maps import ReadOnlyMap

MAP_BYTES: Final = 1 << 16
"""What a mapped group counts for: so there are at most some thousand maps. Its pages belong to the page cache."""

_LARGEST: Final = int(np.iinfo(np.int64).max)

_Value = Callable[[int], Any]
"""The value of a row of a column."""


class RowGroup:
    """Payloads by row, from a pyarrow Table of the columns that they are made of; `nbytes` is what it takes.

    `map` is what the table's memory is a map of, if it is not the process's own.
    """

    def __init__(self, table: Any, columns: Columns, over: ReadOnlyMap | None = None) -> None:
        self.map = over
        self.nbytes: int = table.nbytes if over is None else MAP_BYTES
        if columns.data:
            self.payload: Callable[[int], bytes | None] = _value_of(table.column(columns.data))
            """The payload of a row, None for one without. Raises IndexError, and ExampleError for a value."""
        else:
            self.payload = self._example
        self.no_value = f"The row has no value in the column {columns.data!r}."
        self._features = {name: _value_of(table.column(name)) for name in columns.features}
        self._doubles = float64_columns(table.schema)

    def fault(self, row: int) -> str:
        """Why the row has no payload, as a sentence; "": it has one."""
        try:
            return "" if self.payload(row) is not None else self.no_value
        except ExampleError as error:
            return f"{error.fact} {error.conflict}"

    def _example(self, row: int) -> bytes:
        # An Example has no nulls; a feature without a value has no kind.
        values = {name: value(row) for name, value in self._features.items()}
        features = {name: [] if value is None else value for name, value in values.items()}
        exact = {name: np.asarray(v) if name in self._doubles and v != [] else v for name, v in features.items()}
        try:
            return example.encode(exact, keep_float64=True)
        except ExampleError as error:
            name = next((name for name, value in features.items() if isinstance(value, list) and None in value), None)
            if name is None:
                raise
            conflict = "A tf.train.Example has no nulls."
            raise ExampleError(f"A list in the column {name!r} has a null.", conflict, "fill it in.") from error


def refuse_beyond_int64(path: str, table: Any, names: Iterable[str]) -> None:
    """Raises ExampleError: a column of uint64 has a value that neither an Example nor a label can be.

    The file is sound: such rows are not left out as damaged ones are, since it would be for a reason that nobody sees.
    """
    import pyarrow.compute as compute

    for name in names:
        column = table.column(name)
        if str(getattr(column.type, "value_type", column.type)) != "uint64":
            continue
        for chunk in column.chunks:
            values = chunk.dictionary_decode() if hasattr(chunk, "dictionary_decode") else chunk
            values = values.flatten() if hasattr(values, "flatten") else values
            largest = compute.max(values).as_py() if str(values.type) == "uint64" else None
            if largest is not None and largest > _LARGEST:
                raise ExampleError(
                    f"The column {name!r} of {path} has the value {largest}.",
                    f"Labels, and the integers of a tf.train.Example, reach {_LARGEST}: they have 64 bits and a sign.",
                    "leave the column out by the options columns and label; write it as int64, a feature also as bytes "
                    "or floats; or give pyarrow's table to Catalog.of or data.dataset: features may be uint64 there.",
                )


def _value_of(column: Any) -> _Value:
    chunk = column.chunk(0) if column.num_chunks == 1 else column  # what is too large for one chunk stays in several
    if str(chunk.type) in ("binary", "large_binary") and column.num_chunks == 1:
        return _byte_string(chunk)
    return lambda row: chunk[row].as_py()


def _byte_string(chunk: Any) -> Callable[[int], bytes | None]:
    """The fast way for what most records are: a slice of the column's bytes, 0.3 µs a row."""
    _, offsets, data = chunk.buffers()
    width = 4 if str(chunk.type) == "binary" else 8
    ends = memoryview(offsets)[chunk.offset * width : (chunk.offset + len(chunk) + 1) * width].cast("B")
    bounds = ends.cast("i") if width == 4 else ends.cast("q")
    content = memoryview(data if data is not None else b"")
    if not chunk.null_count:
        return lambda row: bytes(content[bounds[row] : bounds[row + 1]])
    valid = chunk.is_valid().to_numpy(zero_copy_only=False).tobytes()
    return lambda row: bytes(content[bounds[row] : bounds[row + 1]]) if valid[row] else None
