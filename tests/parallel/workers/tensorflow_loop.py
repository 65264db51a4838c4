"""A loop of its own by hvdtrain.tensorflow on this rank's rows, and what else each rank sees, as JSON: `… FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvdtrain.keras as hvd_keras
import hvdtrain.tensorflow as hvd

ROWS = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
TARGETS = ROWS.sum(1, keepdims=True)


def model_of(rank: int) -> Any:
    keras.utils.set_random_seed(7 + rank)
    layers = [keras.layers.Dense(8, "relu"), hvd.SyncBatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((5,)), *layers])


def trained(**options: Any) -> list[float]:
    """Weights after five steps with a distributed tape."""
    model, optimizer = model_of(hvd.rank()), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    rows, targets = ROWS[hvd.rank() :: hvd.size()], TARGETS[hvd.rank() :: hvd.size()]

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows, training=True) - targets) ** 2)
        distributed = hvd.DistributedGradientTape(tape, **options)
        optimizer.apply(distributed.gradient(loss, model.trainable_variables), model.trainable_variables)

    for _ in range(5):
        step()
    return [float(x) for weight in model.weights for x in weight.numpy().ravel()]


def summed_passes(average: bool) -> list[float]:
    """A weight after 4 passes of 2 each: rank r's gradients are r + 1, r + 2, r + 3, r + 4."""
    weight = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average, op=hvd.Average
    )
    seen = []
    step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
    for i in range(1, 5):
        step(tf.constant([float(hvd.rank() + i)]))
        seen.append(float(weight.numpy()[0]))
    return seen


def passes_of_several_lists() -> None:
    """Each list of variables has passes of its own, in whatever order they come."""
    v, u = keras.Variable([0.0]), keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([v, u])
    one, ten = tf.constant([1.0]), tf.constant([10.0])
    for _ in range(2):
        optimizer.apply([one], [v])
        optimizer.apply([ten], [u])
    assert (v.numpy().tolist(), u.numpy().tolist()) == ([-2.0], [-20.0]), (v, u)
    optimizer.apply([one, ten], [v, u])
    optimizer.apply([ten, None], [u, v])
    assert (v.numpy().tolist(), u.numpy().tolist()) == ([-3.0], [-40.0]), (v, u)


def partial_tape() -> list[Any]:
    local, shared = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    rows = tf.fill([1, 1], float(hvd.rank() + 1))
    local.build((1, 1))
    shared.build((1, 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(local(rows) + shared(rows))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=local)
    return [g.numpy().item() for g in tape.gradient(loss, [local.kernel, shared.kernel])]


class TwoOptimizers(keras.Model):
    """As a GAN: `compile` knows one optimizer, which is not used, and train_step applies two others."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]) for _ in range(2)]

    def compile(self) -> None:
        super().compile()
        self.first = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01))
        self.second = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01))

    def train_step(self, data: Any) -> dict[str, Any]:
        rows, targets = data
        for part, optimizer in zip(self.parts, (self.first, self.second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(rows) - targets) ** 2)
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def two_optimizers() -> list[float]:
    keras.utils.set_random_seed(hvd.rank())
    model = TwoOptimizers()
    model.compile()
    rows, targets = ROWS[hvd.rank() :: hvd.size()], TARGETS[hvd.rank() :: hvd.size()]
    start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(rows, targets, batch_size=16 // hvd.size(), epochs=3, shuffle=False, verbose=0, callbacks=[start])
    return [float(x) for weight in model.weights for x in weight.numpy().ravel()]


def collectives() -> dict[str, Any]:
    variable = keras.Variable([1.0, 2.0])
    return {
        "sum": hvd.allreduce(variable, op=hvd.Sum).numpy().tolist(),
        "average": float(hvd_keras.allreduce(float(hvd.rank()))),
        "gathered": hvd_keras.allgather([hvd.rank()]).numpy().tolist(),
        "broadcast": hvd_keras.broadcast([hvd.rank() + 5], 0).numpy().tolist(),
        "object": hvd.broadcast_object_fn(0)({"from": hvd.rank()}),
    }


if __name__ == "__main__":
    hvd.init()
    passes_of_several_lists()
    report = {
        "tape": trained(),
        "fp16": trained(compression=hvd.Compression.fp16),
        "groups": trained(groups=2),
        "predivide": trained(gradient_predivide_factor=2.0),
        "passes": [summed_passes(False), summed_passes(True)],
        "partial": partial_tape(),
        "collectives": collectives(),
        "two_optimizers": two_optimizers(),
    }
    hvd.barrier()
    Path(sys.argv[1], f"rank_{hvd.rank()}.json").write_text(json.dumps(report))
