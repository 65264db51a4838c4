"""Trains a Keras model that keeps variables of every kind on the rows of FOLDER, whole and resumed at every step.

Prints JSON: {"changed": [names], "unequal": [names], "different": {step: [names]}, "refused": {row: fact}}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_resume import KerasRows, open_keras, run
from support.numpy_training import CLASSES, WIDTH, Data, Setting

from data_sharding import Catalog
from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

FLOATS = ["float16", "float32", "float64", "bfloat16", "complex64", "complex128"]
INTEGERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


class Holder(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Passes on its input, and changes a variable of each type in each training step."""

    def build(self, input_shape: Any) -> None:  # noqa: ARG002
        self.held = [
            self.add_weight(name=f"held_{dtype}", shape=(2,), dtype=dtype, initializer="ones", trainable=False)
            for dtype in (*FLOATS, *INTEGERS)
        ]
        self.factor = self.add_weight(name="no_dimensions", shape=(), initializer="ones")
        self.nothing = self.add_weight(name="no_elements", shape=(0, 3))
        self.alone = keras.Variable(np.ones(2, np.float32), trainable=False, name="alone")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            for variable in (*self.held, self.alone):
                is_whole = variable.dtype in INTEGERS
                wide = "int64" if is_whole else "complex128" if variable.dtype.startswith("complex") else "float64"
                value = tf.cast(variable.value, wide)
                variable.assign(tf.cast(value + 1 if is_whole else value / 2, variable.dtype))
        return x * self.factor * (1 + self.alone[0])


class Rows(KerasRows):
    """A task with what `build` makes for a layer, and an optimizer."""

    def __init__(
        self,
        build: Callable[[], layers.Layer] = Holder,
        optimizer: Callable[[float], keras.optimizers.Optimizer] = keras.optimizers.Adam,
    ) -> None:
        self._build, self._optimizer = build, optimizer

    def build_model(self) -> keras.Model:
        x = keras.Input((WIDTH,))
        tied = layers.Dense(WIDTH, name="tied")
        frozen = layers.Dense(WIDTH, name="frozen", dtype="bfloat16", trainable=False)
        y = layers.BatchNormalization(name="norm")(tied(tied(x)))
        y = self._build()(layers.Activation("linear", dtype="float32", name="wide")(frozen(y)))
        return keras.Model(x, layers.Dense(CLASSES, name="logits")(y))

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return self._optimizer(lr)


class Counting(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
    """Makes its steps smaller and smaller by a variable of its own."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.k = keras.Variable(1.0, trainable=False, name="k")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.k.assign(self.k * 0.99)
        super().update_step(gradient, variable, learning_rate * self.k)


class KeepsRaw(layers.Layer):  # type: ignore[misc]  # Keras has no types
    def __init__(self, nested: bool = False) -> None:
        super().__init__(name="raw")
        self.counts: list[Any] = [{"of": (tf.Variable(0.0),)}] if nested else [tf.Variable(0.0)]

    def call(self, x: Any) -> Any:
        return x


class RawCounting(Counting):
    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.count = tf.Variable(0)


class Weighted(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Has one weight."""

    def __init__(self, dtype: str, trainable: bool = True) -> None:
        super().__init__(name="weighted")
        initializer = "ones" if dtype != "string" else lambda shape, dtype: tf.zeros(shape, dtype)  # noqa: ARG005
        self.weight = self.add_weight(name="w", shape=(2,), dtype=dtype, trainable=trainable, initializer=initializer)

    def call(self, x: Any) -> Any:
        return x


REFUSED: dict[str, Callable[[], Rows]] = {
    "weights of bfloat16": lambda: Rows(lambda: layers.Dense(2, name="half", dtype="bfloat16")),
    "weights of complex64": lambda: Rows(lambda: Weighted("complex64")),
    "texts": lambda: Rows(lambda: Weighted("string", trainable=False)),
    "a variable of TensorFlow's in a layer": lambda: Rows(KeepsRaw),
    "a variable of TensorFlow's in nested containers": lambda: Rows(lambda: KeepsRaw(nested=True)),
    "a variable of TensorFlow's in the optimizer": lambda: Rows(optimizer=RawCounting),
}


def refusal(build: Callable[[], Rows]) -> str:
    keras.utils.clear_session()
    try:
        open_keras(build(), SerialCommunicator(Topology.single()), 1)
    except UsageError as error:
        return error.fact
    return "none"


def _is_same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def main(folder: Path, out: Path) -> None:
    data = Data(folder, Catalog.index(folder / "train-*.tfrecord"), Catalog.index(folder / "validation-*.tfrecord"))
    setting = Setting(data, out / "whole", open_adapter=open_keras, task=Rows(optimizer=Counting), sets=())
    adapter = run(setting, None).adapter
    expected = adapter.state()
    adapter.load_rank_local_state(adapter.rank_local_state())
    unequal = [name for name, array in adapter.state().items() if not _is_same(array, expected[name])]
    different: dict[int, list[str]] = {}
    for step, path in enumerate(setting.store().paths(), start=1):
        got = run(replace(setting, folder=out / f"from_{step}"), read_checkpoint(path)).adapter.state()
        different[step] = [
            name
            for name in {**expected, **got}
            if name not in got
            or (got[name].dtype, got[name].tobytes()) != (expected[name].dtype, expected[name].tobytes())
        ]
    saved = read_checkpoint(setting.store().paths()[0]).state
    changed = [name for name, array in expected.items() if array.tobytes() != saved[name].tobytes()]
    refused = {row: refusal(build) for row, build in REFUSED.items()}
    print(json.dumps({"changed": changed, "unequal": unequal, "different": different, "refused": refused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
