"""Elastic training of which one worker is killed: a loop with a tape, then `fit`. Prints what was trained: `… FOLDER`.

Each rank computes on its share of every step's rows, so that weights do not depend on the number of workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvdtrain.keras as hvd_keras
import hvdtrain.tensorflow as hvd
from hvdtrain.errors import PeerError

ROWS = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
TARGETS = np.ones((16, 1), np.float32)


def built(wrap: Callable[[Any], Any]) -> Any:
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(wrap(keras.optimizers.SGD(0.01, momentum=0.9)), "mse")
    return model


def die_once(mark: str) -> None:
    """Kills rank 1 of two, if it has not been killed here before."""
    if hvd.size() == 2 and hvd.rank() == 1:
        Path(sys.argv[1], mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def loop() -> Any:
    model = built(lambda optimizer: optimizer)

    @tf.function(reduce_retracing=True)
    def update(rows: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows, training=True) - targets) ** 2)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 8:
            if state.step == 4 and sys.argv[2] == "loop":
                die_once("killed in the loop")
            update(ROWS[hvd.rank() :: hvd.size()], TARGETS[hvd.rank() :: hvd.size()])
            state.step += 1
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, step=0))
    return model


def passes() -> Any:
    """Two passes an update, of the same rows on each rank; the state is kept between them, and a worker dies in the
    second one."""
    model = built(lambda optimizer: hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2))

    @tf.function(reduce_retracing=True)
    def add(rows: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < 8:
            if state.step == 3 and sys.argv[2] == "passes":
                die_once("killed in the second pass")
            add(ROWS[state.step :: 8], TARGETS[state.step :: 8])
            state.step += 1
            if state.step % 2:
                state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, step=0))
    return model


class Kill(keras.callbacks.Callback):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self.state.epoch == 1 and batch == 1 and sys.argv[2] == "fit":
            die_once("killed in fit")


class Counted(hvd_keras.elastic.CommitStateCallback):
    """As Horovod's own tests have it."""

    def commit(self) -> None:
        self.state.commits += 1
        super().commit()


def fit() -> Any:
    model = built(hvd_keras.DistributedOptimizer)

    @hvd_keras.elastic.run
    def train(state: Any) -> None:
        part = slice(hvd.rank(), None, hvd.size())
        state.model.fit(
            ROWS[part],
            TARGETS[part],
            batch_size=4 // hvd.size(),
            shuffle=False,
            epochs=3 - state.epoch,
            verbose=0,
            callbacks=[
                hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd_keras.callbacks.MetricAverageCallback(),
                Kill(state),
                hvd_keras.elastic.UpdateBatchStateCallback(state),
                hvd_keras.elastic.UpdateEpochStateCallback(state),
                Counted(state, 4),
            ],
        )

    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0, commits=0)
    train(state)
    print("COMMITS", state.commits, flush=True)
    return model


def require_own_masks() -> None:
    """Workers that have met have the same weights, and drop other units."""
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    hvd.elastic.TensorFlowKerasState(model).sync()
    seeds = [variable.numpy() for variable in model.variables if "seed" in variable.path]
    assert len(seeds) == 1
    of_all = hvd.allgather_object([seeds[0].tolist(), model.get_weights()[0].tolist()], name="masks")
    if hvd.size() > 1:
        assert of_all[0][0] != of_all[1][0]
        assert of_all[0][1] == of_all[1][1]


def require_whole_states() -> None:
    """Where the sending worker is lost in the middle, variables and values go back to the same commit."""
    variable = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([variable], losses=[])
    variable.assign(1.0)
    state.losses.append(0.5)
    state._bcast_object = lose_the_sender
    try:
        state.sync()
    except PeerError:
        state.restore()
    assert (float(variable), state.losses) == (0, [])


def lose_the_sender(values: object) -> object:  # noqa: ARG001
    raise PeerError("Rank 0 has ended.", "The others wait for its values.", "none")


if __name__ == "__main__":
    hvd.init()
    require_own_masks()
    require_whole_states()
    for name, train in {"loop": loop, "passes": passes, "fit": fit}.items():
        trained = train()
        weights = np.concatenate([weight.ravel() for weight in trained.get_weights()])
        if hvd.rank() == 0:
            np.save(Path(sys.argv[1], f"{name}.npy"), weights)
            print("TRAINED", name, int(trained.optimizer.iterations), "steps by", hvd.size(), flush=True)
