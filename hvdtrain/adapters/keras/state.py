"""A Keras model and optimizer as named numpy arrays, and back. No pickle."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.errors import UsageError
from hvdtrain.models.keras_normalization import renew_normalization
from hvdtrain.named_arrays import NO_STATE, State, bits_dtype, name_of_bits, require_fit


def read_state(model: Any, optimizer: Any, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
    """Copies of "model/PATH" for all variables of the model and "optimizer/PATH" for the optimizer's.

    The memory of `earlier`, a copy that nobody needs any more, is used again. The learning rate and random seeds are
    left out: they are functions of the step, not a state.
    """
    variables = _variables(model, optimizer)
    return {name: to_array(variable.value, earlier.get(name)) for name, variable in variables.items()}


def view_state(model: Any, optimizer: Any) -> State:
    """The same without copies of what is in host memory already: to be read before the next step."""
    return {name: view_of(variable.value) for name, variable in _variables(model, optimizer).items()}


def view_weights(model: Any, optimizer: Any) -> State:
    variables = _variables(model, optimizer).items()
    return {name: view_of(variable.value) for name, variable in variables if name.startswith("model/")}


def _values(tensor: Any) -> NDArray[Any]:
    """Of a tensor or variable, in its own memory where that is the host's; who assigns later writes to other memory."""
    return np.asarray(tensor.value() if isinstance(tensor, tf.Variable) else tensor)


def _is_bits(dtype: "np.dtype[Any]") -> bool:
    """Whether numpy knows these numbers by an extension only, which TensorFlow brings: bfloat16 and others."""
    return dtype.isbuiltin == 2


def view_of(tensor: Any) -> NDArray[Any]:
    """As `_values`, in a dtype of a state (see `hvdtrain.named_arrays`)."""
    values = _values(tensor)
    return values.view(bits_dtype(values.dtype.name, values.dtype.itemsize)) if _is_bits(values.dtype) else values


def to_tensor(array: NDArray[Any]) -> NDArray[Any]:
    """What TensorFlow takes of an array of a state."""
    name = name_of_bits(array.dtype)
    return array if name is None else array.view(name)


def to_array(tensor: Any, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """A copy in host memory: in that of `into`, where it fits, as new memory takes longer than the copy."""
    values = view_of(tensor)
    if into is None or into.shape != values.shape or into.dtype != values.dtype:
        return np.array(values)
    np.copyto(into, values)
    return into


def assign(target: Any, values: Any) -> None:
    """Put the values of another variable, of a tensor or of an array into a variable."""
    target.assign(values.value if isinstance(values, keras.Variable) else values)


def load_state(model: Any, optimizer: Any, state: State) -> None:
    """Put `state` into model and optimizer, the optimizer's first.

    Raises `UsageError`: names or shapes are not this model's.
    """
    variables = _variables(model, optimizer)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    saved = {name: array for name, array in state.items() if name.startswith(("model/", "optimizer/"))}
    require_fit(saved, shapes, "The saved weights do not fit the model.")
    for name in sorted(variables, reverse=True):  # "optimizer/…" before "model/…"
        variables[name].assign(to_tensor(saved[name]))
    renew_normalization(model)


def drifting_buffers(model: Any) -> State:
    """Variables that no gradient moves, such as BatchNorm's statistics, made by each rank from its own samples.

    Floating numbers are in a type that numpy knows.
    """
    seeds = {id(variable) for variable in seed_states(model)}
    variables = [variable for variable in model.non_trainable_variables if id(variable) not in seeds]
    return {f"model/{variable.path}": _known_to_numpy(_values(variable.value)) for variable in variables}


def _known_to_numpy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy, in float32 where numpy does not compute with such floats."""
    return array.astype(np.float32) if _is_bits(array.dtype) else np.array(array)


def load_rank_local_state(model: Any, buffers: State) -> None:
    for variable in model.non_trainable_variables:
        if f"model/{variable.path}" in buffers:
            variable.assign(buffers[f"model/{variable.path}"])
    renew_normalization(model)


def seed_states(model: Any) -> list[Any]:
    """The variables with the random seeds of dropout and similar layers: uint32 of shape [2], in a fixed order."""
    return [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]


def _variables(model: Any, optimizer: Any) -> dict[str, Any]:
    seeds = {id(v) for v in seed_states(model)}
    named = [(f"model/{v.path}", v) for v in model.variables if id(v) not in seeds]
    seen: Counter[str] = Counter()
    for variable in (each for each in optimizer.variables if each is not optimizer._learning_rate):
        seen[variable.path] += 1  # Adafactor gives all that it keeps of a weight one name
        number = f"#{seen[variable.path]}" if seen[variable.path] > 1 else ""
        named.append((f"optimizer/{variable.path}{number}", variable))
    result = dict(named)
    if len(result) != len(named):
        twice = sorted({name for name, _ in named if sum(name == other for other, _ in named) > 1})
        raise UsageError(
            f"Two variables of the model have the same path, {twice[0]!r}.",
            "A checkpoint could hold only one of them.",
            "give the layers different names.",
        )
    return result
