"""How items of different kinds of objects are read: one by one, several at once, or rows of columns."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import BadRecord, PlanError
from data_sharding.formats.record_format import Damaged

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
            return self.dataset[number]
        except BadRecord as refusal:
            return Damaged.because(refusal.reason)
        except StopIteration as error:
            raise _stopped(self.dataset) from error
        except Exception as error:
            error.add_note(f"in item {number} of the {type(self.dataset).__qualname__}")
            raise


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
    if _is_table(dataset):
        return _table(dataset)
    has = [hasattr(type(dataset), name) for name in ("__len__", "__getitem__")]
    if not all(has) or isinstance(dataset, str | bytes):
        missing = "no length" if not has[0] else "no items by number"
        what = "it is text" if isinstance(dataset, str | bytes) else missing
        raise PlanError(
            f"A {type(dataset).__qualname__} cannot be a data set: {what}.",
            "Each rank reads its own items by their numbers, in an order that the plan knows.",
            "give an object with len() and [], such as a map-style Dataset; write a stream's items to records once "
            "(`hvdtrain shard convert`).",
        )
    return _SeveralAtOnce(dataset) if hasattr(type(dataset), "__getitems__") else _OneByOne(dataset)


def _table(dataset: Any) -> ItemSource:
    if isinstance(dataset, Mapping):
        lengths = {str(name): len(column) for name, column in dataset.items()}
        if len(set(lengths.values())) != 1:
            raise PlanError(
                f"The arrays have the lengths {lengths}.",
                "Row i of each belongs to record i.",
                "give arrays of one length, at least one of them.",
            )
        return _Table({str(name): np.asarray(column) for name, column in dataset.items()})
    return _Table(dataset)


def _is_table(dataset: Any) -> bool:
    if isinstance(dataset, Mapping):
        return True
    kinds = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"))
    # A package that was not imported made no object.
    return any(m in sys.modules and isinstance(dataset, getattr(sys.modules[m], kind, ())) for m, kind in kinds)


def _columns(dataset: Any, ids: NDArray[np.int64]) -> Columns:
    if isinstance(dataset, Mapping):
        return {name: column[ids] for name, column in dataset.items()}
    kind = type(dataset).__module__.partition(".")[0]
    if kind == "pandas":
        rows = dataset.iloc[ids]
        return {str(name): rows[name].to_numpy() for name in rows.columns}
    rows = dataset[ids] if kind == "polars" else dataset.take(ids)
    names = rows.columns if kind == "polars" else rows.column_names
    return {str(name): rows[name].to_numpy() for name in names}
