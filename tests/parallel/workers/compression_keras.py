"""`compression_keras.py FOLDER`: see compression_checks.py."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compression_checks as checks
import keras
import numpy as np
import tensorflow as tf

from hvdtrain.adapters.keras.build import open_gradient_sync
from hvdtrain.adapters.keras.gradients import reduce_gradients
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.keras.update import Update
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology


class Exchanging:
    """The step is traced, as the adapter's."""

    def __init__(self, topology: Topology, options: TrainingOptions) -> None:
        self._variables = variables()
        model = SimpleNamespace(trainable_variables=self._variables)
        self.exchange = open_gradient_sync(model, None, topology, options, Waiting())
        self._reduce = tf.function(lambda *gradients: self.exchange.reduce(gradients, self._variables), autograph=False)

    def update(self, parts: Sequence[checks.Arrays]) -> checks.Arrays:
        factor = np.float32(self.exchange.loss_multiplier)
        whole = [np.sum(of_parts, axis=0) * factor for of_parts in zip(*parts, strict=True)]
        found = [value.numpy() for value in self._reduce(*map(tf.constant, whole))]
        self.exchange.after_update(0)
        return found

    def scaled_update(self, gradients: checks.Arrays) -> checks.Arrays:
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(self._variables)
        update = Update(optimizer, loss_scale=LossScale())
        reduced = [tf.constant(gradient) for gradient in self.update([gradients])]
        changed, _ = update.apply(reduced, self._variables, tf.constant(update.scale))
        return [np.array(changed), *(np.array(variable.value) for variable in self._variables)]


def variables() -> list[Any]:
    return [keras.Variable(np.zeros(shape, np.float32), name=f"v{i}") for i, shape in enumerate(checks.SHAPES)]


def of_own_losses(kept: checks.Checks) -> None:
    """`reduce_gradients`, which hvdtrain.keras uses: each rank's gradient is that of its own loss."""
    for compression in ("fp16", "bf16"):
        for op in ("average", "sum"):
            gradients = kept.own(1)

            reduce = tf.function(functools.partial(_reduced, op, compression), autograph=False)
            kept.keep(f"own-{compression}-{op}/in", gradients)
            kept.keep(f"own-{compression}-{op}/out", [v.numpy() for v in reduce(*map(tf.constant, gradients))])


def _reduced(op: Any, compression: Any, *values: Any) -> list[Any]:
    return reduce_gradients(values, [tf.TensorSpec(shape) for shape in checks.SHAPES], op=op, compression=compression)


if __name__ == "__main__":
    checks.run("tensorflow", Path(sys.argv[1]), Exchanging, of_own_losses)
