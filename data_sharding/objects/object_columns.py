"""One whole number for each of an object's items: an array, or what an attribute or a column of the object has."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.objects.tables import is_a, is_table


def numbers_of(dataset: Any, argument: str, given: Any, count: int) -> NDArray[np.int64] | None:
    """int64[count], or None if nothing was given for `argument`.

    Raises PlanError: there is no such attribute or column, or it is no array of so many numbers."""
    if given is None:
        return None
    found = _named(dataset, given) if isinstance(given, str) else given
    array = np.asarray(found)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise PlanError(
            f"The {argument} are an array of {array.dtype} of shape {list(array.shape)}.",
            f"Each of the {count:,} items has one whole number there.",
            f"give {argument}=ARRAY of int64, or the name of the attribute or column that has them.",
        )
    return as_int64(argument, array)


def as_int64(argument: str, whole: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers as int64. Raises PlanError: one is above what that holds."""
    if whole.dtype.kind == "u" and len(whole) and int(whole.max()) > np.iinfo(np.int64).max:
        raise PlanError(
            f"The {argument} reach {int(whole.max())}.",
            "They are kept as int64, whose numbers end at 9223372036854775807.",
            "number them from 0, and keep what they stand for in a table.",
        )
    return whole.astype(np.int64)


def require_lengths(lengths: NDArray[np.int64]) -> None:
    """Raises PlanError: one is below 0."""
    if lengths.min() < 0:
        raise PlanError(
            f"Item {int(lengths.argmin())} has the length {int(lengths.min())}.",
            "A length is 0 or more.",
            "give the number of elements of each item.",
        )


def _named(dataset: Any, name: str) -> Any:
    if is_a(dataset, "datasets", "Dataset") and name in dataset.column_names:
        return dataset.with_format(None)[name][:]  # its format may hide the column
    if hasattr(dataset, name) and not is_table(dataset):
        return getattr(dataset, name)
    try:
        return dataset[name]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise PlanError(
            f"A {type(dataset).__qualname__} has no attribute and no column {name!r}.",
            "One number for each item should be there.",
            "give an array of int64, or another name.",
        ) from error
