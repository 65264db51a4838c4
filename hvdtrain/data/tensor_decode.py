"""What a task's `decode` returns, as arrays that become tensors in its framework, or refused by the feature's name."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch, RecordBatch
from data_sharding.errors import PlanError
from data_sharding.loading.decoding import name_of
from hvdtrain.data.printed_lines import PRINTED
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_log = logging.getLogger("hvdtrain.data")

_NUMBERS: Final = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The dtypes of which both frameworks have tensors, in the form that they know. (torch does not know C's unsigned long
long, which is a uint64, too.)"""


_FLOAT64: Final = {
    "torch": "Layers with float32 weights refuse it.",
    "tensorflow": "It takes twice the memory of float32, to which Keras converts it before the first layer.",
}


class NoTensorError(UsageError, PlanError):
    """A decode function returned what no tensor can hold."""


@dataclass(frozen=True)
class TensorDecode:
    """A task's `decode`, whose arrays torch and TensorFlow take: in this machine's byte order and without negative
    strides. The task's framework decides what a tensor can hold: in TensorFlow that is text and bytes, too.
    """

    task: Task

    @property
    def __wrapped__(self) -> Callable[[RecordBatch], dict[str, NDArray[Any]]]:
        """What messages name."""
        return self.task.decode

    def __call__(self, records: RecordBatch) -> dict[str, NDArray[Any]]:
        """The arrays for k records. Raises NoTensorError; and what the task's `decode` raises."""
        with PRINTED.sorted_out():
            features = self.task.decode(records)
        if not isinstance(features, Mapping):
            return features  # which the caller refuses, as it does arrays of another length
        if not features:
            raise NoTensorError(
                f"{_source(self.task)} no array.",
                "There is nothing to train on.",
                'return the arrays that measure() needs, for example {"image": images, "label": labels}.',
            )
        return {name: self._array(name, array) for name, array in features.items()}

    def _array(self, name: str, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array  # refused by the caller
        known = _NUMBERS.get(array.dtype.name)
        if known is None and not (self.task.framework == "tensorflow" and _has_tensor(array)):
            raise _no_tensor(self.task, name, array)
        if known is not None and (array.dtype.num != known.num or not array.dtype.isnative):
            array = array.astype(known)
        return array.copy() if min(array.strides, default=0) < 0 else array


def warn_of_float64(task: Task, batch: LoadedBatch) -> None:
    """Name the features of float64. Layers of torch refuse them with an error that does not name them."""
    names = [name for name, array in batch.features.items() if array.dtype == np.float64]
    if names:
        _log.warning(
            "%s float64 for %s. %s HINT: use .astype(np.float32) for what goes into the model.",
            _source(task),
            " and ".join(map(repr, names)),
            _FLOAT64[task.framework],
        )


def _has_tensor(array: NDArray[Any]) -> bool:
    """Whether TensorFlow has tensors of what are not numbers to numpy: text, bytes, bfloat16 and the like."""
    if array.dtype.kind == "O":
        return all(isinstance(item, str | bytes) for item in array.flat)
    return array.dtype.kind in "SU" or array.dtype.type.__module__ == "ml_dtypes"


def _source(task: Task) -> str:
    """The beginning of a sentence that says what came."""
    is_own = getattr(task.decode, "__func__", None) is not Task.decode
    return f"The decode function {name_of(task.decode)} returned" if is_own else "The items of the data give"


def _no_tensor(task: Task, name: str, array: NDArray[Any]) -> NoTensorError:
    what, hint = f"an array of {array.dtype}", f"convert {name!r} to numbers, for example with .astype(np.float32)."
    if array.dtype.kind == "O":
        plain = int | float | np.generic
        first = next((type(each).__name__ for each in array.flat if not isinstance(each, plain)), "numbers")
        what = f"an array of Python objects ({first})"
        hint = f"make {name!r} an array of numbers: rows of one length and one dtype, padded where they differ."
    elif array.dtype.kind in "SU":
        what, hint = f"an array of text ({array.dtype})", f"return numbers for {name!r}, such as those of its tokens."
    elif array.dtype.kind in "Mm":
        what = f"an array of {'dates' if array.dtype.kind == 'M' else 'time spans'} ({array.dtype})"
        hint = f"return numbers for {name!r}, such as seconds: (array - start) / np.timedelta64(1, 's')."
    fact = f"{_source(task)} {what} for {name!r}."
    return NoTensorError(fact, "There are no such tensors.", hint)
