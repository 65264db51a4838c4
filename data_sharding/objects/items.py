"""How items of different kinds of objects are read: one by one, several at once, or rows of columns."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import BadRecord, PlanError
from data_sharding.formats.record_format import Damaged
from data_sharding.objects.arrays import as_column

Columns = Mapping[str, NDArray[Any]]


class ItemSource(Protocol):
    """What a catalog needs of an object."""

    dataset: Any

    def __len__(self) -> int:
        """How many items it has now."""

    def items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        """Items ids int64[k]."""


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


class _OneByOne:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        return [self._item(number) for number in ids.tolist()]

    def _item(self, number: int) -> Any:
        try:
            return self._get(number)
        except BadRecord as refusal:
            return Damaged.because(refusal.reason)
        except StopIteration as error:
            raise _stopped(self.dataset) from error
        except Exception as error:
            error.add_note(f"in item {number} of the {type(self.dataset).__qualname__}")
            raise

    def _get(self, number: int) -> Any:
        return self.dataset[number]


class _Series(_OneByOne):
    """A column of pandas, whose [] takes labels of its index instead of places."""

    def _get(self, number: int) -> Any:
        return self.dataset.iloc[number]


class _SeveralAtOnce(_OneByOne):
    """Hugging Face's datasets, torch's Subset: what has torch's `__getitems__`."""

    def items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        try:
            found = self.dataset.__getitems__(ids.tolist())
        except BadRecord:  # which of them is bad, one by one
            return super().items(ids)
        except StopIteration as error:
            raise _stopped(self.dataset) from error
        return found if isinstance(found, Sequence) else list(found)


class _Table(_OneByOne):
    """Rows of numpy arrays by name, or of a table of pandas, polars or pyarrow."""

    def __len__(self) -> int:
        dataset = self.dataset
        return len(next(iter(dataset.values()))) if isinstance(dataset, Mapping) else len(dataset)

    def items(self, ids: NDArray[np.int64]) -> Rows:
        return Rows(_columns(self.dataset, ids), len(ids))


def _stopped(dataset: Any) -> RuntimeError:
    """Instead of StopIteration, which would pass for the end of the epoch in whatever iterates over the batches."""
    return RuntimeError(f"the {type(dataset).__qualname__} raised StopIteration for an item")


def source_of(dataset: Any) -> ItemSource:
    """How the object is read. Raises PlanError: it has no length or no items, or arrays differ in length."""
    if is_table(dataset):
        return _table(dataset)
    if refusal := _why_not(dataset):
        raise PlanError(
            f"A {type(dataset).__qualname__} cannot be a data set: {refusal}.",
            "Each rank reads its own items by their numbers, in an order that the plan knows.",
            "give an object with len() and [], such as a map-style Dataset, or a dict of arrays; write the items of a "
            "stream to records once (`hvdtrain shard convert`).",
        )
    if _is_a(dataset, "pandas", "Series"):
        return _Series(dataset)
    dataset = _giving_items(dataset)
    return _SeveralAtOnce(dataset) if hasattr(type(dataset), "__getitems__") else _OneByOne(dataset)


def _giving_items(dataset: Any) -> Any:
    """The same data in Python's own values, where Hugging Face's format is one whose rows are tables and no items."""
    given = getattr(dataset, "format", None) if _is_a(dataset, "datasets", "Dataset") else None
    if not isinstance(given, Mapping) or given.get("type") not in ("arrow", "polars"):
        return dataset
    return dataset.with_format(columns=given["columns"], output_all_columns=given["output_all_columns"])


def _why_not(dataset: Any) -> str:
    """What is in the way of taking items by their numbers; nothing where it can be done."""
    is_array = [getattr(part, "shape", ()) != () for part in dataset] if type(dataset) is tuple else []
    if is_array and all(is_array):
        return "it is a tuple of arrays, of which nobody knows the names"
    if isinstance(dataset, str | bytes):
        return "it is text"
    if not hasattr(type(dataset), "__len__") or getattr(dataset, "shape", None) == ():
        return "it has no length"
    is_stream = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    return "it has no items by number" if is_stream or not hasattr(type(dataset), "__getitem__") else ""


def _table(dataset: Any) -> ItemSource:
    if isinstance(dataset, np.ndarray):
        dataset = {name: dataset[name] for name in dataset.dtype.names or ()}
    columns = _arrays(dataset) if isinstance(dataset, Mapping) else _without_structs(dataset)
    table = _Table(columns)
    empty = [] if isinstance(columns, Mapping) else _with_nulls(columns)
    if empty:
        raise PlanError(
            f"The column {empty[0]!r} of the table has nulls.",
            "No number stands for them, and the type of a batch would depend on its rows.",
            "fill them or leave such rows out first.",
        )
    return table


def _arrays(dataset: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    columns = {}
    for name, column in dataset.items():
        is_one = hasattr(column, "column_names") or isinstance(column, Mapping)
        made = np.empty(()) if is_one else as_column(column)
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


def _with_nulls(table: Any) -> list[str]:
    """Names of columns with nulls, which tables have beside numbers that are none. (numpy's columns have none.)"""
    kind = type(table).__module__.partition(".")[0]
    if kind == "pandas":
        types = table.dtypes.items()
        return [str(name) for name, dtype in types if not isinstance(dtype, np.dtype) and table[name].isna().any()]
    names = table.columns if kind == "polars" else table.column_names
    counts = {str(name): table[name].null_count for name in names}
    return [name for name, count in counts.items() if (count() if callable(count) else count)]


def is_table(dataset: Any) -> bool:
    """Whether it is a dict of arrays, an array of numpy with fields, or a table of pandas, polars or pyarrow."""
    if isinstance(dataset, Mapping) or (isinstance(dataset, np.ndarray) and dataset.dtype.names):
        return True
    kinds = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch"))
    return any(_is_a(dataset, *kind) for kind in kinds)


def _is_a(dataset: Any, package: str, kind: str) -> bool:
    """A package that was not imported made no object."""
    return package in sys.modules and isinstance(dataset, getattr(sys.modules[package], kind, ()))


def _without_structs(table: Any) -> Any:
    """The table, with a column for each field of a struct: `box.left`."""
    if _is_a(table, "polars", "DataFrame"):
        while structs := [name for name, dtype in table.schema.items() if dtype == sys.modules["polars"].Struct]:
            table = table.unnest(structs, separator=".")
    elif not _is_a(table, "pandas", "DataFrame"):
        arrow = sys.modules["pyarrow"]
        table = arrow.Table.from_batches([table]) if isinstance(table, arrow.RecordBatch) else table
        while any(arrow.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
    return table


def _columns(dataset: Any, ids: NDArray[np.int64]) -> Columns:
    if isinstance(dataset, Mapping):
        return {name: column[ids] for name, column in dataset.items()}
    kind = type(dataset).__module__.partition(".")[0]
    if kind == "pandas":
        rows = dataset.iloc[ids]
        return {str(name): _stacked(rows[name].to_numpy()) for name in rows.columns}
    rows = dataset[ids] if kind == "polars" else dataset.take(ids)
    names = rows.columns if kind == "polars" else rows.column_names
    return {str(name): _stacked(rows[name].to_numpy()) for name in names}


def _stacked(column: NDArray[Any]) -> NDArray[Any]:
    """A column of lists of one length as an array of rows."""
    are_lists = column.dtype == object and all(isinstance(each, np.ndarray | list) for each in column)
    are_even = are_lists and len({len(each) for each in column}) == 1
    return np.stack([np.asarray(each) for each in column]) if are_even else column
