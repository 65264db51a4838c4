"""How items of different kinds of objects are read: one by one, several at once, or rows of columns (`tables`)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import BadRecord, PlanError, UnlikeItemsError
from data_sharding.formats.record_format import Damaged
from data_sharding.objects.tables import is_a, is_table, table_of


class ItemSource(Protocol):
    """What a catalog needs of an object."""

    dataset: Any

    def __len__(self) -> int:
        """How many items it has now."""

    def items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        """Items ids int64[k]."""


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
            raise _stopped(self.dataset, f"item {number}") from error
        except Exception as error:
            error.add_note(f"in item {number} of the {type(self.dataset).__qualname__}")
            raise

    def _get(self, number: int) -> Any:
        return self.dataset[number]


class _Series(_OneByOne):
    """A column of pandas, whose [] takes labels of its index instead of places."""

    def _get(self, number: int) -> Any:
        return self.dataset.iloc[number]


class _ArrowArray(_OneByOne):
    """An array of pyarrow, whose items are scalars of its own."""

    def _get(self, number: int) -> Any:
        return self.dataset[number].as_py()


class _SeveralAtOnce(_OneByOne):
    """Hugging Face's datasets, torch's Subset: what has torch's `__getitems__`, with `[]` or without."""

    def items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        try:
            return self._as_many(self.dataset.__getitems__(ids.tolist()), len(ids))
        except UnlikeItemsError:
            raise
        except Exception as error:
            failure = error
        one_by_one = super().items(ids)  # names the item that fails, or marks the refused ones
        if isinstance(failure, BadRecord):
            return one_by_one
        items = f"{len(ids)} items together, the first of them item {ids[0]}"
        if isinstance(failure, StopIteration):
            raise _stopped(self.dataset, items) from failure
        failure.add_note(f"in {items}, of the {type(self.dataset).__qualname__}; each alone does not fail")
        raise failure

    def _get(self, number: int) -> Any:
        return self._as_many(self.dataset.__getitems__([number]), 1)[0]

    def _as_many(self, found: Any, count: int) -> Sequence[Any]:
        kind = type(self.dataset).__qualname__
        if isinstance(found, Mapping):
            raise UnlikeItemsError(
                f"__getitems__ of the {kind} returned a {type(found).__qualname__}.",
                "It is asked for a list of items.",
                "return one item for each number, and join them in a collate_fn.",
            )
        if found is None:
            raise UnlikeItemsError(
                f"__getitems__ of the {kind} returned None.", "It is asked for a list of items.", "return that list."
            )
        items: Sequence[Any] = found if isinstance(found, Sequence) else list(found)
        if len(items) != count:
            raise UnlikeItemsError(
                f"__getitems__ of the {kind} returned {len(items)} items, and was asked for {count}.",
                "Nobody could tell which item belongs to which number.",
                "return one item for each number, in their order; raise BadRecord(reason) for one that cannot be used.",
            )
        return items


def _stopped(dataset: Any, items: str) -> RuntimeError:
    """Instead of StopIteration, which would pass for the end of the epoch in whatever iterates over the batches."""
    return RuntimeError(f"the {type(dataset).__qualname__} raised StopIteration for {items}")


def source_of(dataset: Any) -> ItemSource:
    """How the object is read. Raises PlanError: it has no length or no items, or arrays differ in length."""
    if is_table(dataset):
        return table_of(dataset)
    if refusal := _why_not(dataset):
        raise PlanError(
            f"A {type(dataset).__qualname__} cannot be a data set: {refusal}.",
            "Each rank reads its own items by their numbers, in an order that the plan knows.",
            "give an object with len(), and [] or __getitems__, such as a map-style Dataset, or a dict of arrays; "
            "write the items of a stream to records once (`hvdtrain shard convert`).",
        )
    if is_a(dataset, "pandas", "Series"):
        return _Series(dataset)
    if is_a(dataset, "pyarrow", "Array") or is_a(dataset, "pyarrow", "ChunkedArray"):
        return _ArrowArray(dataset)
    dataset = _giving_items(dataset)
    return _SeveralAtOnce(dataset) if hasattr(type(dataset), "__getitems__") else _OneByOne(dataset)


def _giving_items(dataset: Any) -> Any:
    """The same data in Python's own values, where Hugging Face's format is one whose rows are tables and no items."""
    given = getattr(dataset, "format", None) if is_a(dataset, "datasets", "Dataset") else None
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
    has_items = hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")
    return "it has no items by number" if is_stream or not has_items else ""
