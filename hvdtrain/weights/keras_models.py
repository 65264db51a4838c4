"""Keras models with the weights of files, and as files. Imports Keras on TensorFlow."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.adapters.keras.state import seed_states
from hvdtrain.errors import UsageError
from hvdtrain.weights.exclusion import Exclusion
from hvdtrain.weights.fitting import fitted, require_same
from hvdtrain.weights.keras_files import FIRST_NAME, datasets, is_of_keras_3, opened, read_old
from hvdtrain.weights.named_weights import Arrays, NamedWeights


def read_into(model: keras.Model, path: Path, names: Sequence[str], exclusion: Exclusion | None = None) -> Arrays:
    """The weights in a Keras file, by Keras' own rules of which layer they belong to.

    Args:
        model: as the task builds it, which this spoils.
        path: .weights.h5, .keras, or .h5 of before Keras 3.
        names: of the model's weights in their order; a second model in one process has others by itself.
        exclusion: what is not read, by name or by place in the file.

    Raises:
        UsageError: the file is damaged, or another model's; what differs is listed.
    """
    exclusion = exclusion or Exclusion(None)
    with opened(path) as file:
        if not is_of_keras_3(file):
            return read_old(file, path)
        with tempfile.TemporaryDirectory() as folder, _quiet():
            own, copy = Path(folder) / "own.weights.h5", Path(folder) / "copy.weights.h5"
            called = _places(model, own, names)
            fresh = {place for place, name in called.items() if name in exclusion}
            found = {
                place: item.shape
                for place, item in datasets(file, path).items()
                if place not in fresh and (place in called or place not in exclusion)
            }
            with opened(own) as like:
                expected = {place: item.shape for place, item in datasets(like, own).items() if place not in fresh}
                require_same(expected, found, str(path), exclusion, called)
                _copy(file, copy, {place: like[place][()] for place in fresh}, found)
            model.load_weights(copy)
    kept = set(names) - {called[place] for place in fresh}
    arrays = zip(names, weights_of(model).values(), strict=True)
    return {name: _to_array(variable) for name, variable in arrays if name in kept}


def _places(model: keras.Model, own: Path, names: Sequence[str]) -> dict[str, str]:
    """Where in a Keras file each weight of `model` is, told by its number, and written to `own`."""
    for number, variable in enumerate(weights_of(model).values()):
        variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))
    model.save_weights(own)
    with opened(own) as like:
        return {place: names[int(np.ravel(item[()])[0])] for place, item in datasets(like, own).items()}


def weights_of(model: keras.Model) -> dict[str, Any]:
    """Path → variable of all weights and statistics, without the seeds of dropout and its like."""
    seeds = {id(variable) for variable in seed_states(model)}
    return {variable.path: variable for variable in model.variables if id(variable) not in seeds}


def give_weights(model: keras.Model, found: NamedWeights) -> None:
    """Put `found` into `model`. Errors as `fitted`."""
    variables = weights_of(model)
    wanted: Mapping[str, NDArray[Any]] = {path: _to_array(v) for path, v in variables.items()}
    for path, array in fitted(found, wanted, "tensorflow").items():
        variables[path].assign(array)


def write_model(model: keras.Model, format_name: str, path: Path) -> str:
    """Write a built model as "keras", "weights-h5", "savedmodel" or "onnx". Returns what it takes, in words.

    Raises:
        UsageError: a package for ONNX is not installed.
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


def use_no_gpu() -> None:
    """A model that is only written needs none, and TensorFlow would take all of its memory."""
    tf.config.set_visible_devices([], "GPU")


def _to_array(variable: Any) -> NDArray[Any]:
    return np.array(variable.value.numpy())


def _write_onnx(model: keras.Model, path: Path) -> None:
    model([tf.zeros((1, *x.shape[1:]), x.dtype) for x in model.inputs] if len(model.inputs) > 1 else _zeros(model))
    try:
        model.export(path, format="onnx", verbose=False)
    except ImportError as error:
        raise UsageError(
            f"ONNX needs a package that is not installed: {error}.",
            "Keras writes ONNX by it.",
            "pip install 'hvdtrain[export]'.",
        ) from error


def _zeros(model: keras.Model) -> Any:
    (only,) = model.inputs
    return tf.zeros((1, *only.shape[1:]), only.dtype)


def _copy(file: Any, path: Path, others: Arrays, kept: Container[str]) -> None:
    """The weights `kept` of `file` as a file of their own, beside `others`."""
    import h5py

    with h5py.File(path, "w") as written:
        for name in file:
            if name != "optimizer":
                file.copy(name, written)
        first = "layers" not in file  # of Keras 3.0
        for place in datasets(file, path):
            if place not in kept:
                del written[place.replace("layers/", FIRST_NAME, 1) if first else place]
        for place, array in others.items():
            written[place.replace("layers/", FIRST_NAME, 1) if first else place] = array


@contextmanager
def _quiet() -> Iterator[None]:
    """Keras 3.15 and its way to tf2onnx use what numpy 2 deprecates, and say so for each variable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
