"""Data, models and optimizers that the Keras workers train. The same global batches at every number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

GLOBAL_BATCH = 24
STEPS = 5
EPOCHS = 2
FEATURES = 6
WORDS = 11


@dataclass(frozen=True)
class Case:
    """One optimizer on one model; `wrap` holds the options of DistributedOptimizer."""

    optimizer: Callable[[], Any]
    model: Callable[[], Any] = field(default=lambda: dense_model())
    wrap: dict[str, Any] = field(default_factory=dict)
    words: bool = False
    compile: dict[str, Any] = field(default_factory=dict)


def dense_model() -> Any:
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def unbuilt_model() -> Any:
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


class Subclassed(keras.Model):
    """Creates its weights when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.out(self.hidden(inputs))


def embedding_model() -> Any:
    layers = [
        keras.Input((4,), dtype="int32"),
        keras.layers.Embedding(WORDS, 5),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def normalized_model() -> Any:
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def cases(size: int) -> dict[str, Case]:
    """Every way of training whose result must be that of one process."""
    opt = keras.optimizers
    return {
        "sgd_momentum": Case(lambda: opt.SGD(0.05, momentum=0.9)),
        "adam_embedding_clipnorm": Case(lambda: opt.Adam(0.01, clipnorm=0.05), embedding_model, words=True),
        "sgd_embedding": Case(lambda: opt.SGD(0.5), embedding_model, words=True),
        "global_clipnorm": Case(lambda: opt.SGD(0.1, global_clipnorm=0.1)),
        "adamw_ema": Case(lambda: opt.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3)),
        "accumulation": Case(lambda: opt.SGD(0.1, gradient_accumulation_steps=2, clipnorm=0.1)),
        "loss_scale": Case(lambda: opt.LossScaleOptimizer(opt.SGD(0.1, momentum=0.9), initial_scale=8.0)),
        "sum": Case(lambda: opt.SGD(0.1 / size), wrap={"op": "sum"}),
        "fp16": Case(lambda: opt.SGD(0.05, momentum=0.9), wrap={"compression": "fp16"}),
        "unbuilt": Case(lambda: opt.SGD(0.05, momentum=0.9), unbuilt_model),
        "subclassed": Case(lambda: opt.Adam(0.01), Subclassed),
        "jit_asked_for": Case(lambda: opt.SGD(0.05, momentum=0.9), compile={"jit_compile": True}),
        "eager": Case(lambda: opt.SGD(0.05, momentum=0.9), compile={"run_eagerly": True}),
        "two_steps_an_execution": Case(lambda: opt.SGD(0.05, momentum=0.9), compile={"steps_per_execution": 2}),
    }


def global_data(words: bool, samples: int = GLOBAL_BATCH * STEPS) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    y = rng.normal(size=(samples, 1)).astype("float32")
    if words:
        return rng.integers(0, WORDS, size=(samples, 4)).astype("int32"), y
    return rng.normal(size=(samples, FEATURES)).astype("float32"), y


def own_part(array: Any, rank: int, size: int) -> Any:
    """This rank's contiguous part of every global batch."""
    batches = array.reshape(-1, GLOBAL_BATCH, *array.shape[1:])
    own = GLOBAL_BATCH // size
    return batches[:, rank * own : (rank + 1) * own].reshape(-1, *array.shape[1:])


def uneven_part(array: Any, rank: int, size: int) -> Any:
    """A part whose length grows with the rank."""
    edges = np.cumsum([0, *range(1, size + 1)]) * len(array) // sum(range(1, size + 1))
    return array[edges[rank] : edges[rank + 1]]
