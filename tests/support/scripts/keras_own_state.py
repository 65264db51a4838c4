"""Trains Keras models that count, draw and add by themselves, and prints what came out as one line of JSON."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.adapters.keras.update import global_norm
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology

DRAWN: list[list[float]] = []


class Counts(keras.layers.Layer):
    """Counts its calls, in training and in evaluation."""

    def build(self, _shape: Any) -> None:
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return x


class Draws(keras.layers.Layer):
    """Adds noise by TensorFlow's own numbers, which it notes."""

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        noise = tf.random.normal((6,))
        tf.py_function(lambda drawn: DRAWN.append(drawn.numpy().tolist()), [noise], [])
        return x + noise


class Averages(keras.layers.Layer):
    """Keeps a metric."""

    def __init__(self) -> None:
        super().__init__(name="averages")
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any) -> Any:
        self.mean.update_state(tf.reduce_mean(x))
        return x


class Given(Task):
    """Three classes from six numbers; the first layer is given."""

    framework = "tensorflow"

    def __init__(self, layer: Callable[[], Any], **optimizer: Any) -> None:
        super().__init__()
        self._layer, self._optimizer = layer, optimizer

    def open_data(self, data: Any) -> Any:
        raise NotImplementedError

    decode = open_data

    def build_model(self) -> keras.Model:
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(3)(self._layer()(inputs)))
        model.compile("sgd", "mse")  # as a loaded model is, which has metrics of its own then
        return model

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.SGD(lr, **self._optimizer)

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        logits = tf.cast(model(batch["x"]), tf.float32)
        return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits)}


def batch(seed: int) -> LoadedBatch:
    random = np.random.default_rng(seed)
    features = {"x": random.normal(size=(12, 6)).astype(np.float32), "y": random.integers(0, 3, 12)}
    return LoadedBatch(0, np.arange(12), np.ones(12, np.float32), features, 12.0)


def adapter_of(task: Task, **options: Any) -> KerasAdapter:
    keras.backend.clear_session()
    return KerasAdapter(task, Topology.single(), 3, 0.1, TrainingOptions(**options))


def trained(task: Task, first: int = 0, steps: int = 3, **options: Any) -> dict[str, Any]:
    adapter = adapter_of(task, **options)
    for step in range(first, first + steps):
        adapter.train_step(batch(step), step, 0.1)
    return dict(adapter.state())


def moved(task: Task, **options: Any) -> bool:
    state = trained(task, **options)
    return all(bool(np.isfinite(array).all()) for name, array in state.items() if name.startswith("model/"))


def drawn(first: int) -> list[list[float]]:
    DRAWN.clear()
    trained(Given(Draws), first)
    return [*DRAWN]


def refusal(**optimizer: Any) -> str:
    try:
        adapter_of(Given(Counts, **optimizer))
    except UsageError as error:
        return error.fact
    return ""


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def told(layer: Callable[[], Any], **options: Any) -> list[str]:
    handler = Told()
    logging.getLogger("hvdtrain.run").addHandler(handler)
    trained(Given(layer), steps=1, **options)
    logging.getLogger("hvdtrain.run").removeHandler(handler)
    return handler.lines


def dense(**options: Any) -> Callable[[], Any]:
    return lambda: keras.layers.Dense(6, **options)


def norm_of(*dtypes: str) -> float:
    return float(global_norm([tf.constant([300.0, 400.0], dtype) for dtype in dtypes]))


def main() -> None:
    penalties = dense(activity_regularizer="l2", kernel_regularizer="l2")
    (calls,) = (v for name, v in trained(Given(Counts)).items() if name.endswith("/calls"))
    found = {
        "calls": float(calls),
        "drawn": [drawn(0), drawn(0), drawn(1)],
        "refused": [refusal(loss_scale_factor=1024.0), refusal(use_ema=True), refusal()],
        "refused_overwriting": refusal(use_ema=True, ema_overwrite_frequency=2),
        "metrics": told(Averages),
        "half": told(dense(dtype="mixed_float16")),
        "half_scaled": told(dense(), precision="fp16"),
        "compiled": told(dense()),
        "penalties": [moved(Given(penalties), precision=precision) for precision in ("bf16", "fp16")],
        "two_dtypes": [moved(Given(dense(dtype=dtype)), max_grad_norm=1.0) for dtype in ("float64", "float16")],
        "scaled_dtypes": moved(Given(dense(dtype="float64")), precision="fp16"),
        "norms": [norm_of("float32"), norm_of("float16"), norm_of("float64", "float16", "float32", "float32")],
    }
    print(json.dumps(found))


main()
