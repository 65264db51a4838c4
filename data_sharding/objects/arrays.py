"""One value of an item, or one column of a table, as an array of numpy."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError

_BEYOND_INT64: Final = 2.0**63


def as_array(value: Any, name: str = "A value") -> NDArray[Any]:
    """An array of numpy from an array, a tensor, a picture, or numbers; floats of Python as float32.

    Raises PlanError, whose first words are `name`: values of numpy's masked array are missing; numpy has no array of
    Python's values as they are; or a tensor is sparse, or of a dtype that numpy does not have.
    """
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        raise PlanError(
            f"{name} is a masked array with {int(value.mask.sum()):,} missing values.",
            "A batch would hold whatever stands behind the mask.",
            "fill them in (array.filled(0)), and give the mask as a part of its own if the model needs it.",
        )
    if hasattr(value, "detach"):  # a tensor of torch
        value = _of_tensor(value, name)
    array = _of_rows(np.asarray(value))
    if hasattr(value, "dtype"):
        return array
    if array.dtype.kind == "S":
        return _bytes_of_python(array, value)
    if array.dtype.kind == "U":
        return _texts_of_python(array, value, name)
    return _floats_of_python(array, value, name) if array.dtype == np.float64 else array


def _of_tensor(tensor: Any, name: str) -> NDArray[Any]:
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise PlanError(
            f"{name} is a tensor of the layout {tensor.layout}.",
            "A batch has one dense array for each part.",
            "give it as tensor.to_dense(), or its indices and values as parts of their own.",
        )
    own = tensor.detach().cpu()
    for view in ("resolve_conj", "resolve_neg"):  # numpy knows no views that are conjugated or negated
        own = getattr(own, view, lambda own=own: own)()
    try:
        made: NDArray[Any] = (own.float() if str(own.dtype) == "torch.bfloat16" else own).numpy()
    except TypeError as error:  # torch's, of a dtype
        raise PlanError(
            f"{name} is a tensor of the dtype {tensor.dtype}.",
            "A batch has arrays of numpy, which does not have this dtype.",
            "give it in another one, such as tensor.float(), or its bytes as tensor.view(torch.uint8).",
        ) from error
    return made


def _bytes_of_python(array: NDArray[Any], value: Any) -> NDArray[Any]:
    """numpy's own kind of bytes leaves out zeros at their end: where there are some, the bytes themselves."""
    objects = _objects_of(array, value)
    return objects if any(each.endswith(b"\0") for each in objects.flat) else array


def _texts_of_python(array: NDArray[Any], value: Any, name: str) -> NDArray[Any]:
    other = next((each for each in _objects_of(array, value).flat if not isinstance(each, str)), None)
    if other is not None:
        raise _changed(f"{name} has texts and {other!r}", "texts")
    return array


def _floats_of_python(array: NDArray[Any], value: Any, name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        made = array.astype(np.float32)
    if np.abs(made).max(initial=0.0) < _BEYOND_INT64:
        return made
    is_finite = np.isfinite(array)  # the largest may be NaN
    if (is_finite & (np.abs(array) >= _BEYOND_INT64)).any():
        large = next((each for each in _objects_of(array, value).flat if _is_beyond_int64(each)), None)
        if large is not None:
            raise _changed(f"{name} has the whole number {large}, which int64 does not have", "rounded")
    lost = array[is_finite & ~np.isfinite(made)]
    if lost.size:
        raise _changed(f"{name} has the number {lost.flat[0]}, which float32 does not have", "infinite")
    return made


def _objects_of(array: NDArray[Any], value: Any) -> NDArray[Any]:
    """The elements of `value`, of which numpy has made `array`."""
    if not isinstance(value, list | tuple | bytes):
        return array.astype(object)
    try:
        return np.array(value, object)
    except TypeError:  # of an object with numpy's old `__array__(self)`
        return array.astype(object)


def _is_beyond_int64(value: Any) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _changed(what: str, into: str) -> PlanError:
    return PlanError(
        f"{what}.",
        f"numpy would make them {into} without a word.",
        "give an array of numpy of the dtype that you want.",
    )


def _of_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Rows that are arrays of one shape, as Hugging Face's format "pandas" has them, as one array of numbers."""
    if array.dtype != object or array.ndim != 1 or not all(isinstance(row, np.ndarray) for row in array):
        return array
    rows = [_of_rows(row) for row in array]
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else array


def as_column(values: Any, name: str = "A column") -> NDArray[Any]:
    """Row i for each i: an array of numbers, or of objects where the rows are lists of several lengths.

    Lists and tensors as `as_array` takes them; other arrays keep their dtype.
    """
    try:
        is_array = not isinstance(values, list | tuple | np.ma.MaskedArray) and not hasattr(values, "detach")
        return np.asarray(values) if is_array else as_array(values, name)
    except ValueError:  # numpy's, of rows that differ in length
        return array_of_objects(values)


def array_of_objects(values: Sequence[Any]) -> NDArray[Any]:
    """Each value as it is, whatever numpy would make of it."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
