"""One value of an item, or one column of a table, as an array of numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError


def as_array(value: Any) -> NDArray[Any]:
    """An array of numpy from an array, a tensor, a picture, or numbers; floats of Python as float32.

    Raises PlanError: values of numpy's masked array are missing; numpy has no array of Python's values as they are; or
    a tensor is sparse.
    """
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        raise PlanError(
            f"A masked array has {int(value.mask.sum()):,} missing values.",
            "A batch would hold whatever stands behind the mask.",
            "fill them in (array.filled(0)), and give the mask as a part of its own if the model needs it.",
        )
    if hasattr(value, "detach"):  # a tensor of torch
        value = _dense(value).detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = _of_rows(np.asarray(value))
    is_of_python = not hasattr(value, "dtype")
    return _of_python(array, value) if is_of_python and (array.dtype.kind in "SU" or array.dtype == float) else array


def _dense(tensor: Any) -> Any:
    if str(getattr(tensor, "layout", "torch.strided")) in ("torch.strided", "torch._mkldnn"):
        return tensor
    raise PlanError(
        f"A tensor has the layout {tensor.layout}.",
        "A batch has one dense array for each part.",
        "give it as tensor.to_dense(), or its indices and values as parts of their own.",
    )


def _of_python(array: NDArray[Any], value: Any) -> NDArray[Any]:
    """What numpy has made of numbers or texts of Python, without what it changes in them on the way."""
    if array.dtype.kind == "S":
        return np.array(value, object)  # numpy's own kind of bytes leaves out zeros at their end
    if array.dtype.kind == "U":
        other = next((each for each in np.array(value, object).flat if not isinstance(each, str)), None)
        if other is not None:
            raise _changed(f"has texts and {other!r}", "texts")
        return array
    with np.errstate(over="ignore"):
        made = array.astype(np.float32)
    if not np.abs(made).max(initial=0.0) < 2.0**63:  # NaN among them, too
        large = next((each for each in np.array(value, object).flat if _is_beyond_int64(each)), None)
        if large is not None:
            raise _changed(f"has the whole number {large}, which int64 does not have", "rounded numbers")
        lost = array[np.isfinite(array) & ~np.isfinite(made)]
        if lost.size:
            raise _changed(f"has the number {lost.flat[0]}, which float32 does not have", "infinite")
    return made


def _is_beyond_int64(value: Any) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _changed(what: str, into: str) -> PlanError:
    return PlanError(
        f"A list of Python's values {what}.",
        f"numpy would make them {into} without a word.",
        "give an array of numpy of the dtype that you want.",
    )


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
