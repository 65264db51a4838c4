"""`sync_batch_norm_keras.py FOLDER CASES`: each rank trains on its part of a batch, then rank 0 on all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras import layers as keras_layers

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm, horovod_sum
from hvdtrain.models.keras import zoo

STEPS = 2
ROWS = {1: [7], 2: [6, 1], 3: [4, 1, 2]}
REAL = np.array([True, True, False, True, True, True, True])


def layers() -> keras.Model:
    """One layer is used twice, so that a graph holds two collectives of it."""
    shared = keras_layers.BatchNormalization(momentum=0.8)
    inner = keras.Sequential([keras.Input((6, 6, 4)), shared, keras_layers.Conv2D(4, 1), shared])
    features = inner(keras_layers.Conv2D(4, 3)(inputs := keras.Input((8, 8, 3))))
    flat = keras_layers.Dense(5)(keras_layers.Flatten()(features))
    return keras.Model(inputs, keras_layers.BatchNormalization(scale=False)(flat))


def residual() -> keras.Model:
    """The first two blocks of a ResNet-18: float64 shows an error that many layers would make larger."""
    zoo.RESNETS["two_blocks"] = (zoo.RESNETS["resnet18"][0], (1, 1))
    return zoo.resnet("two_blocks", 3, 8)


CASES: dict[str, tuple[Callable[[], keras.Model], str, bool]] = {
    "layers": (layers, "float32", False),
    "layers_eagerly": (layers, "float32", True),
    "residual": (residual, "float64", False),
}


def train(model: keras.Model, rows: slice, alone: bool, eagerly: bool) -> dict[str, Any]:
    """Some steps of SGD; the loss is the mean over all real records, gradients are summed over ranks."""
    x = np.random.default_rng(1).normal(size=(7, 8, 8, 3)).astype(model.compute_dtype)[rows]
    variables = model.trainable_variables

    def step(x: Any, real: Any) -> Any:
        with tf.GradientTape() as tape, batch_mask(real):
            tape.watch(x)
            losses = tf.reduce_mean(tf.square(model(x, training=True)), 1)
            loss = tf.reduce_sum(losses * tf.cast(real, x.dtype)) / REAL.sum()
        to_inputs, *gradients = tape.gradient(loss, [x, *(v.value for v in variables)])
        if not alone:
            summed = [horovod_sum(tf.reshape(g, [-1]), f"gradient_{place}") for place, g in enumerate(gradients)]
            gradients = [tf.reshape(flat, g.shape) for flat, g in zip(summed, gradients, strict=True)]
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.05 * gradient)
        return losses, to_inputs, gradients

    run_step = step if eagerly else tf.function(step, autograph=False)
    for _ in range(STEPS):
        losses, to_inputs, gradients = run_step(tf.constant(x), tf.constant(REAL[rows]))
    named = {f"gradient_{place}": gradient for place, gradient in enumerate(gradients)}
    weights = {f"weight_{place}": v.value for place, v in enumerate(model.variables)}
    return {"losses": losses, "to_inputs": to_inputs, **named, **weights}


def build(case: str) -> keras.Model:
    make, dtype, _ = CASES[case]
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    return make()


def main(folder: Path, cases: list[str]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    rank, sizes = hvd.rank(), ROWS[hvd.size()]
    first = sum(sizes[:rank])
    arrays: dict[str, Any] = {"first": first, "rows": sizes[rank]}
    for case in cases:
        model = build(case)
        convert_sync_batch_norm(model, horovod_sum)
        found = train(model, slice(first, first + sizes[rank]), alone=False, eagerly=CASES[case][2])
        arrays |= {f"{case}/found/{name}": value.numpy() for name, value in found.items()}
    hvd.shutdown()
    for case in cases if rank == 0 else []:
        model = build(case)
        convert_sync_batch_norm(model, None)
        expected = train(model, slice(None), alone=True, eagerly=False)
        arrays |= {f"{case}/expected/{name}": value.numpy() for name, value in expected.items()}
    np.savez(folder / f"rank_{rank}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
