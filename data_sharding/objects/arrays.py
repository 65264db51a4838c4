"""One value of an item, or one column of a table, as an array of numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError


def as_array(value: Any) -> NDArray[Any]:
    """An array of numpy from an array, a tensor, a picture, or numbers; floats of Python as float32.

    Raises PlanError: values of numpy's masked array are missing.
    """
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        raise PlanError(
            f"A masked array has {int(value.mask.sum()):,} missing values.",
            "A batch would hold whatever stands behind the mask.",
            "fill them in (array.filled(0)), and give the mask as a part of its own if the model needs it.",
        )
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = _of_rows(np.asarray(value))
    is_of_python = not hasattr(value, "dtype")
    return array.astype(np.float32) if is_of_python and array.dtype == np.float64 else array


def _of_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Rows that are arrays of one shape, as Hugging Face's format "pandas" has them, as one array of numbers."""
    if array.dtype != object or array.ndim != 1 or not all(isinstance(row, np.ndarray) for row in array):
        return array
    rows = [_of_rows(row) for row in array]
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else array


def as_column(values: Any) -> NDArray[Any]:
    """Row i for each i: an array of numbers, or of objects where the rows are lists of several lengths.

    Lists and tensors as `as_array` takes them; other arrays keep their dtype.
    """
    try:
        is_array = not isinstance(values, list | tuple | np.ma.MaskedArray) and not hasattr(values, "detach")
        return np.asarray(values) if is_array else as_array(values)
    except ValueError:  # numpy's, of rows that differ in length
        return array_of_objects(values)


def array_of_objects(values: Sequence[Any]) -> NDArray[Any]:
    """Each value as it is, whatever numpy would make of it."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
