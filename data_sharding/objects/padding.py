"""Parts of items that differ in length, such as sequences of tokens: padded to one length a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import at_least
from data_sharding.errors import PlanError, UnlikeItemsError
from data_sharding.objects.arrays import as_array


def rows_filled(
    typed: Sequence[NDArray[Any]], arrays: Sequence[NDArray[Any]], length: int, fill: float, name: str
) -> NDArray[Any]:
    """Arrays [n_i, ...] as rows of one array [k, length, ...] that is filled up, of a dtype that holds all of `typed`.

    Raises:
        PlanError: `fill` cannot be a number of that dtype.
        UnlikeItemsError: arrays differ in other dimensions than the first.
    """
    shape = typed[0].shape[1:] if typed else ()
    dtype = np.result_type(*typed) if typed else np.dtype(np.int64)
    other = next((array for array in typed if array.shape[1:] != shape), None)
    if other is not None:
        raise UnlikeItemsError(
            f"{name!r} has the shape {list(typed[0].shape)} in one item, and {list(other.shape)} in another.",
            "Items are padded along their first dimension.",
            "make the other dimensions alike, or give a collate_fn.",
        )
    made = np.full((len(arrays), length, *shape), filler(fill, dtype, name), dtype)
    for row, array in zip(made, arrays, strict=True):
        if len(array):
            row[: len(array)] = array
    return made


def filler(value: float, dtype: np.dtype[Any], name: str) -> Any:
    """The number as one of that dtype. Raises PlanError: it cannot be one."""
    with np.errstate(all="ignore"):
        made = np.asarray(value).astype(dtype)[()]
    if dtype.kind not in "biufc" or not (made == value or (made != made and value != value) or dtype.kind == "f"):
        raise PlanError(
            f"{name!r} is {dtype}, and is to be filled up with {value}.",
            "That is no number of this type.",
            "choose a number that the type has, or give items of another type.",
        )
    return made


def _several(lengths: Any) -> tuple[Any, ...]:
    try:
        return tuple(lengths)
    except TypeError:  # one number
        return (lengths,)


@dataclass(frozen=True)
class Padding:
    """Which parts are padded at their end along the first dimension.

    Attributes:
        values: what each part is filled up with, by its name.
        lengths: lengths to which batches are padded, ascending; without, to the longest item of the global batch.
    """

    values: Mapping[str, float]
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, float] | None, lengths: Sequence[int] | int) -> "Padding | None":
        """Raises PlanError: lengths without parts, or below 1."""
        given = _several(lengths)
        if values is None and not given:
            return None
        if not isinstance(values, Mapping) or not values:
            raise PlanError(
                f"pad={values!r} was given{' with pad_to' if given else ''}.",
                "It names the parts of items that differ in length, and what each is filled up with.",
                'give for example pad={"tokens": 0, "labels": -100}.',
            )
        for name, value in values.items():
            if not isinstance(value, int | float | np.generic):
                raise PlanError(
                    f"{name!r} is to be padded with {value!r}.",
                    "Items are filled up with a number.",
                    f"give for example pad={{{name!r}: 0}}.",
                )
        whole = [at_least(1, "pad_to", length, "Batches are padded to a length.") for length in given]
        return cls(dict(values), tuple(sorted(whole)))

    def require_fits(self, longest: int) -> None:
        """Raises PlanError: an item of that length is longer than all lengths to pad to."""
        if self.lengths and longest > self.lengths[-1]:
            raise PlanError(
                f"The longest item has {longest:,} elements, and pad_to ends at {self.lengths[-1]:,}.",
                "An item is not cut off.",
                f"cut such items in the object, or add a length of {longest:,} or more to pad_to.",
            )

    def length_of(self, parts: Mapping[str, Any]) -> int:
        """Of an item, by its parts: that of its longest padded part. Raises PlanError: it does not have one of them."""
        return max(len(self._part(parts, name)) for name in self.values)

    def padded(self, name: str, values: Sequence[Any], longest: int | None) -> NDArray[Any]:
        """The part of k items as one array [k, length, ...]: of the length that `longest`, or the longest, leads to.

        Raises:
            PlanError: the number to fill up with cannot be one of the part's dtype.
            UnlikeItemsError: an item is longer than `longest`, or items differ in other dimensions than the first.
        """
        arrays = [as_array(value, repr(name)) for value in values]
        needed = max(map(len, arrays))
        if longest is not None and needed > longest:
            raise UnlikeItemsError(
                f"{name!r} of an item has {needed:,} elements, and the step's longest item was to have {longest:,}.",
                "All workers pad to the length that is known before items are made.",
                "give lengths=… that no item exceeds, whatever its random transforms draw.",
            )
        # An empty list of Python does not say of which type its elements would be.
        typed = [array for array, value in zip(arrays, values, strict=True) if len(array) or hasattr(value, "dtype")]
        return rows_filled(typed, arrays, self._length_for(longest or needed), self.values[name], name)

    def _length_for(self, longest: int) -> int:
        return next((each for each in self.lengths if each >= longest), longest)

    def _part(self, parts: Mapping[str, Any], name: str) -> Any:
        if name not in parts or np.ndim(parts[name]) == 0:
            raise PlanError(
                f"pad names {name!r}, and an item has {', '.join(map(repr, parts))}.",
                "What is padded is a part of each item with a length.",
                "name parts of the items that are arrays.",
            )
        return parts[name]
