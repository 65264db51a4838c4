"""The rows of `user_code_rows` that are TensorFlow's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from support.numpy_training import CLASSES, WIDTH, NumpyTask, decode_rows

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology

Row = tuple[Callable[[Any], object], Callable[[], object]]


class Rows(Task):
    """With a frozen layer."""

    framework = "tensorflow"

    def open_data(self, data: Any) -> Any:
        return NumpyTask().open_data(data)

    def decode(self, records: Any) -> Any:
        return decode_rows(records)

    def build_model(self) -> keras.Model:
        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dense(4, name="first", trainable=False)(inputs)
        hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization(name="norm")(hidden))
        return keras.Model(inputs, keras.layers.Dense(CLASSES, name="last")(hidden))

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.Adam(lr)

    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["x"])
        return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits)}


def batch() -> LoadedBatch:
    features = {"x": np.ones((4, WIDTH), np.float32), "label": np.zeros(4, np.int64)}
    return LoadedBatch(0, np.arange(4), np.ones(4, np.float32), features, 4.0)


seed = keras.utils.set_random_seed


def _nothing() -> None:
    pass


def _row(change: Callable[[Any], object], undo: Callable[[], object] = _nothing) -> Row:
    return change, undo


def _set(layer: str, trainable: bool) -> Row:
    return _row(lambda a: setattr(a.model.get_layer(layer), "trainable", trainable))


def _add_weight(adapter: Any) -> None:
    layer = adapter.model.get_layer("last")
    layer._tracker.unlock()
    layer.added = layer.add_weight(name="added", shape=())


def _eagerly(on: bool) -> Callable[..., None]:
    return lambda *_: tf.config.run_functions_eagerly(on)


def _tf32(on: bool) -> Callable[..., None]:
    return lambda *_: tf.config.experimental.enable_tensor_float_32_execution(on)


REFUSED: Final[dict[str, Row]] = {
    "unfrozen": _set("first", True),
    "frozen": _set("last", False),
    "weight added": _row(_add_weight),
    "learning rate": _row(lambda a: a.optimizer.learning_rate.assign(1.0)),
    "number of the optimizer": _row(lambda a: setattr(a.optimizer, "beta_1", 0.5)),
    "floatx": _row(lambda _: keras.config.set_floatx("float64"), lambda: keras.config.set_floatx("float32")),
    "dtype policy": _row(
        lambda _: keras.config.set_dtype_policy("mixed_bfloat16"), lambda: keras.config.set_dtype_policy("float32")
    ),
    "image data format": _row(
        lambda _: keras.config.set_image_data_format("channels_first"),
        lambda: keras.config.set_image_data_format("channels_last"),
    ),
    "eager functions": _row(_eagerly(True), _eagerly(False)),
    "TF32": _row(_tf32(True), _tf32(False)),
}


def _threads() -> str:
    """What TensorFlow itself says."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(3)
    except RuntimeError as error:
        return str(error)
    return ""


def _attribute_of_a_layer() -> list[list[float]]:
    """Weights after two steps, with a dropout's rate changed between them or not."""
    weights = []
    for rate in (0.1, 0.9):
        adapter = KerasAdapter(Rows(), Topology.single(), 1, 0.1, TrainingOptions())
        for step in range(2):
            adapter.train_step(batch(), step, 0.1)
            next(layer for layer in adapter.model.layers if isinstance(layer, keras.layers.Dropout)).rate = rate
        weights.append(np.asarray(adapter.model.get_layer("last").kernel).reshape(-1).tolist())
    return weights


class Measures(Rows):
    """With one more."""

    def __init__(self, more: dict[Any, Any]) -> None:
        self._more = more

    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().measure(model, batch), **self._more}


def _measures() -> list[str]:
    """What is said about values of other kinds."""
    facts = []
    for added in ({"a": np.ones(4, np.float32)}, {"a": [1.0] * 4}, {3: tf.ones(4)}):
        try:
            KerasAdapter(Measures(added), Topology.single(), 1, 0.1, TrainingOptions()).train_step(batch(), 0, 0.1)
        except UsageError as error:
            facts.append(error.fact)
    return facts


def more() -> dict[str, Any]:
    """Rows that are neither all refused when an epoch begins, nor without any effect."""
    return {"threads": _threads(), "attribute_of_a_layer": _attribute_of_a_layer(), "measures": _measures()}
