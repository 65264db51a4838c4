"""Tables as data: numpy arrays by name, and tables of pandas, polars and pyarrow. A row is an item."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.objects.arrays import array_of_objects, as_column

Columns = Mapping[str, NDArray[Any]]


class Rows(Sequence[dict[str, Any]]):
    """k rows of a table, by columns of k numbers, texts, or arrays."""

    def __init__(self, columns: Columns, length: int) -> None:
        self.columns, self._length = columns, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "Rows": ...
    def __getitem__(self, index: int | slice) -> "dict[str, Any] | Rows":
        part = {name: column[index] for name, column in self.columns.items()}
        return Rows(part, len(range(self._length)[index])) if isinstance(index, slice) else part


class _Table:
    """Rows of numpy arrays by name, or of a table of pandas, polars or pyarrow. An `ItemSource`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        dataset = self.dataset
        return len(next(iter(dataset.values()))) if isinstance(dataset, Mapping) else len(dataset)

    def items(self, ids: NDArray[np.int64]) -> Rows:
        return Rows(_columns(self.dataset, ids), len(ids))


def table_of(dataset: Any) -> _Table:
    """How the rows are read. Raises PlanError: columns differ in length, have one name, nulls, or an unknown type."""
    if isinstance(dataset, np.ndarray):
        dataset = {name: dataset[name] for name in dataset.dtype.names or ()}
    columns = _arrays(dataset) if isinstance(dataset, Mapping) else _without_structs(dataset)
    table = _Table(columns)
    names = [*map(str, dataset if isinstance(dataset, Mapping) else _names(columns))]
    if twice := {name for name in names if names.count(name) > 1}:
        raise one_name_twice("columns of the table", min(twice))
    empty = [] if isinstance(columns, Mapping) else _with_nulls(columns)
    if empty:
        raise PlanError(
            f"The column {empty[0]!r} of the table has nulls.",
            "No number stands for them, and the type of a batch would depend on its rows.",
            "fill them or leave such rows out first.",
        )
    if not isinstance(columns, Mapping) and len(columns):
        _read_a_row(columns)
    return table


def _arrays(dataset: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    columns = {}
    for name, column in dataset.items():
        is_one = hasattr(column, "column_names") or isinstance(column, Mapping)
        made = np.empty(()) if is_one else as_column(column, repr(str(name)))
        if made.ndim == 0:
            raise PlanError(
                f"{name!r} of the dict is an object of type {type(column).__qualname__}.",
                "A dict is taken for the columns of a table, which are arrays.",
                "give a dict of arrays, or one of the data sets that are in it.",
            )
        columns[str(name)] = made
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise PlanError(
            f"The arrays have the lengths {lengths}.",
            "Row i of each belongs to record i.",
            "give arrays of one length, at least one of them.",
        )
    return columns


def _read_a_row(table: Any) -> None:
    """Raises PlanError, which names the column: its library makes no numpy of values of its type, or takes no rows."""
    try:
        _columns(table, np.zeros(1, np.int64))
    except Exception as error:  # each library has its own
        names = _names(table)
        if len(names) == 1:
            kind = next(iter(table.dtypes if hasattr(table, "dtypes") else table.schema.types))
            raise PlanError(
                f"The column {str(names[0])!r} of the table has the type {kind}.",
                f"Its rows cannot be read one by one as values of numpy ({type(error).__name__}: {error}).",
                "cast it to another type, or leave it out.",
            ) from error
        for place, name in enumerate(names):
            _read_a_row(table.iloc[:, [place]] if hasattr(table, "iloc") else table.select([name]))
        raise


def _with_nulls(table: Any) -> list[str]:
    """Names of columns with nulls, which tables have beside numbers that are none. (numpy's columns have none.)"""
    kind = type(table).__module__.partition(".")[0]
    if kind == "pandas":
        types = table.dtypes.items()
        return [
            str(name) for name, kind in types if not isinstance(kind, np.dtype) and _has_null_of_pandas(table[name])
        ]
    if kind == "polars":
        return [name for name in table.columns if _has_null_of_polars(table[name])]
    return [name for name in table.column_names if any(map(_has_null_of_arrow, table[name].chunks))]


def _has_null_of_pandas(column: Any) -> bool:
    if column.isna().any():
        return True
    if type(column.dtype).__name__ != "ArrowDtype":
        return False
    array = column.array.__arrow_array__()
    return any(map(_has_null_of_arrow, array.chunks if hasattr(array, "chunks") else [array]))


def _has_null_of_arrow(array: Any) -> bool:
    """Whether a value is null, or one within a list, a map or a struct."""
    if array.null_count:
        return True
    if hasattr(array, "dictionary_decode"):
        return _has_null_of_arrow(array.dictionary) and _has_null_of_arrow(array.dictionary_decode())
    if str(array.type).startswith("map<"):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()  # `items` has those of the whole table
        return _has_null_of_arrow(array.items.slice(begin, end - begin))
    if hasattr(array, "storage"):  # of an extension, such as a tensor
        return _has_null_of_arrow(array.storage)
    # The values that a slice has: those of lists one after the other, those of structs by field.
    values = array.flatten() if hasattr(array, "flatten") else []
    return any(map(_has_null_of_arrow, values if isinstance(values, list) else [values]))


def _has_null_of_polars(column: Any) -> bool:
    if column.null_count():
        return True
    polars = sys.modules["polars"]
    if isinstance(column.dtype, polars.Array):
        column = column.arr.to_list()
    if isinstance(column.dtype, polars.Struct):
        return any(_has_null_of_polars(column.struct.field(field.name)) for field in column.dtype.fields)
    if not isinstance(column.dtype, polars.List):
        return False
    return _has_null_of_polars(column.filter(column.list.len() > 0).explode())


def _names(table: Any) -> list[Any]:
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


def one_name_twice(what: str, name: str) -> PlanError:
    """Two of `what` have one name."""
    return PlanError(
        f"Two {what} have the name {name!r}.",
        "A batch has one array for each name; a part of a part is called 'outer.inner'.",
        "rename one of them, or leave it out.",
    )


def is_table(dataset: Any) -> bool:
    """Whether it is a dict of arrays, an array of numpy with fields, or a table of pandas, polars or pyarrow."""
    if isinstance(dataset, Mapping) or (isinstance(dataset, np.ndarray) and dataset.dtype.names):
        return True
    kinds = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch"))
    return any(is_a(dataset, *kind) for kind in kinds)


def is_a(dataset: Any, package: str, kind: str) -> bool:
    """A package that was not imported made no object."""
    return package in sys.modules and isinstance(dataset, getattr(sys.modules[package], kind, ()))


def _without_structs(table: Any) -> Any:
    """The table, with a column for each field of a struct: `box.left`."""
    if is_a(table, "polars", "DataFrame"):
        while structs := [name for name, dtype in table.schema.items() if dtype == sys.modules["polars"].Struct]:
            table = table.unnest(structs, separator=".")
    elif not is_a(table, "pandas", "DataFrame"):
        arrow = sys.modules["pyarrow"]
        table = arrow.Table.from_batches([table]) if isinstance(table, arrow.RecordBatch) else table
        while any(arrow.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        table = _without_views(table)
    return table


def _without_views(table: Any) -> Any:
    """Texts and byte strings of pyarrow's views in the layout of which it takes rows."""
    arrow = sys.modules["pyarrow"]
    kinds = {"string_view": arrow.large_string(), "binary_view": arrow.large_binary()}
    for place, field in enumerate(table.schema):
        if (kind := kinds.get(str(field.type))) is not None:
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _columns(dataset: Any, ids: NDArray[np.int64]) -> Columns:
    if isinstance(dataset, Mapping):
        return {name: column[ids] for name, column in dataset.items()}
    kind = type(dataset).__module__.partition(".")[0]
    if kind == "pandas":
        rows = dataset.iloc[ids]
        return {str(name): _stacked(rows[name].to_numpy()) for name in rows.columns}
    rows = dataset[ids] if kind == "polars" else dataset.take(ids)
    return {str(name): _stacked(_numpy(rows[name])) for name in _names(rows)}


def _numpy(column: Any) -> NDArray[Any]:
    """A column of polars or pyarrow; tensors of one shape as such."""
    if str(getattr(column, "type", "")).startswith("extension<arrow.fixed_shape_tensor"):
        tensors: NDArray[Any] = column.combine_chunks().to_numpy_ndarray()
        return tensors
    if str(getattr(column, "type", "")).startswith("map<"):  # whose pairs numpy would make texts of
        maps = np.empty(len(column), object)
        maps[:] = [dict(pairs) for pairs in column.to_pylist()]
        return maps
    if _has_structs_of_polars(column):  # whose fields it would put side by side, without their names
        return array_of_objects(column.to_list())
    return np.asarray(column.to_numpy())


def _has_structs_of_polars(column: Any) -> bool:
    """Whether its lists have structs in them."""
    if not is_a(column, "polars", "Series"):
        return False
    dtype = column.dtype
    while hasattr(dtype, "inner"):
        dtype = dtype.inner
    return bool(dtype == sys.modules["polars"].Struct)


def _stacked(column: NDArray[Any]) -> NDArray[Any]:
    """A column of lists of one length as an array of rows."""
    if column.dtype != object or not all(isinstance(each, np.ndarray | list) for each in column):
        return column
    try:
        made = [_cell(each) for each in column]
    except ValueError:  # numpy's, of lists in it that differ in length
        return column
    return np.stack(made) if len({each.shape for each in made}) == 1 else column


def _cell(value: Any) -> NDArray[Any]:
    made = np.asarray(value)
    return as_column(value) if made.dtype.kind == "S" else made  # bytes may have zeros at their end
