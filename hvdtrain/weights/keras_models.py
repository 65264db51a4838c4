"""Keras models with the weights of files, and as files. Imports Keras on TensorFlow."""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from numpy.typing import NDArray

from hvdtrain.adapters.keras.state import seed_states
from hvdtrain.models.keras_normalization import constants_in_graph, renew_normalization
from hvdtrain.weights.keras_files import datasets, is_of_keras_3, opened, read_old
from hvdtrain.weights.named_weights import Arrays, Exclusion, NamedWeights, fitted, no_onnx, require_same

_UIDS: Final = "object_name_uids"  # of keras/src/utils/naming.py, `auto_name`


def read_into(model: keras.Model, path: Path, names: Sequence[str], exclusion: Exclusion) -> Arrays:
    """The weights in a Keras file, by Keras' own rules of which layer they belong to.

    Args:
        model: the task's, whose values are lost.
        names: of the model's weights in their order; a second model in one process has others by itself.
        exclusion: what is not read, by name or by place in the file.

    Raises `UsageError`: the file is damaged, or another model's; what differs is listed.
    """
    with opened(path) as file:
        if not is_of_keras_3(file):
            return read_old(file, path)
        places = _places(model, names)
        called = {place: name for place, (name, _) in places.items()}
        wanted = {place: shape for place, (name, shape) in places.items() if name not in exclusion}
        items = {
            place: item
            for place, item in datasets(file, path).items()
            if place in wanted or (place not in places and place not in exclusion)
        }
        shapes = {place: item.shape for place, item in items.items()}
        require_same(wanted, shapes, str(path), exclusion, called)
        return {called[place]: item[()] for place, item in items.items()}


def _places(model: keras.Model, names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Find where in a Keras file each weight of `model` is, by writing numbers to a file; with its name and shape."""
    variables = list(weights_of(model).values())
    holds_numbers = all(keras.backend.standardize_dtype(variable.dtype) in _HOLD_NUMBERS for variable in variables)
    base = max(2, len(variables)) if holds_numbers else 2  # others hold digits, in several files
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    power = 1
    while power == 1 or power < len(variables):
        for number, variable in enumerate(variables):
            variable.assign(tf.fill(variable.shape, tf.cast(number // power % base, variable.dtype)))
        for place, (digit, shape) in _first_numbers(model).items():
            found[place] = found.get(place, (0, shape))[0] + power * digit, shape
        power *= base
    return {place: (names[number], shape) for place, (number, shape) in found.items()}


def _first_numbers(model: keras.Model) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Place in a file of the weights of `model` → the first number there, and the shape."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        probe = Path(folder) / "own.weights.h5"
        model.save_weights(probe)
        with opened(probe) as file:
            items = datasets(file, probe).items()
            return {place: (int(np.ravel(item[()])[0]), item.shape) for place, item in items}


_HOLD_NUMBERS: Final = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))
"""Dtypes that hold the number of any weight of a model."""


def weights_of(model: keras.Model) -> dict[str, Any]:
    """Path → variable of all weights and statistics, without the seeds of dropout and similar layers."""
    seeds = {id(variable) for variable in seed_states(model)}
    return {variable.path: variable for variable in model.variables if id(variable) not in seeds}


def give_weights(model: keras.Model, weights: NamedWeights) -> None:
    variables = weights_of(model)
    wanted: Mapping[str, NDArray[Any]] = {path: np.array(v.value.numpy()) for path, v in variables.items()}
    for path, array in fitted(weights, wanted, "tensorflow").items():
        variables[path].assign(array)
    renew_normalization(model)


def write_model(model: keras.Model, format_name: str, path: Path) -> str:
    """Write a built model as "keras", "weights-h5", "savedmodel" or "onnx". Returns what it takes, in words.

    Raises `UsageError`: a package for ONNX is not installed.
    """
    with _quiet():
        if format_name == "weights-h5":
            model.save_weights(path)
            return ""
        if format_name == "keras":
            model.save(path)
        elif format_name == "savedmodel":
            model.export(path, format="tf_saved_model", verbose=False)
        else:
            _write_onnx(model, path)
    return ", ".join(f"{x.name} {x.dtype} {['batch', *x.shape[1:]]}" for x in model.inputs).replace("'", "")


@contextmanager
def names_from_the_start() -> Iterator[None]:
    """Layers that are built in the block get the names that they have in a new process, whatever was built before."""
    before = global_state.get_global_attribute(_UIDS)
    global_state.set_global_attribute(_UIDS, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(_UIDS, before)


def use_no_gpu() -> None:
    """A model that is only written needs none, and TensorFlow would take all of its memory."""
    tf.config.set_visible_devices([], "GPU")


def _write_onnx(model: keras.Model, path: Path) -> None:
    zeros = [tf.zeros((1, *x.shape[1:]), x.dtype) for x in model.inputs]
    model(zeros if len(zeros) > 1 else zeros[0])
    try:
        with constants_in_graph():
            model.export(path, format="onnx", verbose=False)
    except ImportError as error:
        raise no_onnx(error, "Keras") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keras 3.15 and its way to tf2onnx use what numpy 2 deprecates, and say so for each variable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
