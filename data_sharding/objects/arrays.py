"""One value of an item, or one column of a table, as an array of numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(value: Any) -> NDArray[Any]:
    """An array of numpy from an array, a tensor, a picture, or numbers; floats of Python as float32."""
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    is_of_python = not hasattr(value, "dtype")
    return array.astype(np.float32) if is_of_python and array.dtype == np.float64 else array


def as_column(values: Any) -> NDArray[Any]:
    """Row i for each i: an array of numbers, or of objects where the rows are lists of several lengths.

    Lists and tensors as `as_array` takes them; other arrays keep their dtype.
    """
    try:
        return as_array(values) if isinstance(values, list | tuple) or hasattr(values, "detach") else np.asarray(values)
    except ValueError:  # numpy's, of rows that differ in length
        return array_of_objects(values)


def array_of_objects(values: Sequence[Any]) -> NDArray[Any]:
    """Each value as it is, whatever numpy would make of it."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
