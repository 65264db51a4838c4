"""Keras' own `fit` with its defaults: what a step takes where nothing is exchanged. On a GPU they include XLA.

With --exchange, each of several processes trains so for itself, and after each step mpi4py sums as many bytes as the
gradients have: the least that workers with these messages need which do one after the other.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.step import hand_protocol, networks_keras
from benchmarks.step.workload import LR, MODELS, SEED, inputs, labels, own_ids


class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Records a second of each epoch, and the loss of the last."""

    def __init__(self, records: int) -> None:
        super().__init__()
        self._records = records
        self.speeds: list[float] = []
        self.loss = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.speeds.append(self._records / (time.perf_counter() - self._begin))
        self.loss = float(logs["loss"])


class _Exchange(keras.callbacks.Callback):  # type: ignore[misc]
    """Sums float32[parameters] over processes after each step. Nothing is done with them."""

    def __init__(self, parameters: int) -> None:
        from mpi4py import MPI

        super().__init__()
        self._mpi, self.comm = MPI, MPI.COMM_WORLD
        self._sums = np.zeros(parameters, np.float32)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.comm.Allreduce(self._mpi.IN_PLACE, self._sums)


def main() -> None:
    """Train on one batch; an iteration of the protocol is an epoch."""
    options = hand_protocol.parse()
    keras.utils.set_random_seed(SEED)
    if options.bf16:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = networks_keras.build(options.model)
    model.compile(keras.optimizers.SGD(LR), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = own_ids(options.model, 0, 1)
    data = tf.data.Dataset.from_tensors((inputs(options.model, ids), labels(ids))).repeat()
    exchange = [_Exchange(sum(math.prod(v.shape) for v in model.trainable_variables))] if options.exchange else []
    model.fit(data, steps_per_epoch=options.num_warmup_batches, verbose=0, callbacks=exchange)
    clock = _Clock(MODELS[options.model].batch * options.num_batches_per_iter)
    steps = options.num_batches_per_iter
    model.fit(data, epochs=options.num_iters, steps_per_epoch=steps, verbose=0, callbacks=[*exchange, clock])
    if not exchange or exchange[0].comm.rank == 0:
        print(json.dumps({"iterations": clock.speeds, "loss": clock.loss}), flush=True)


if __name__ == "__main__":
    main()
