"""What user code may do to a Keras model in training, on every rank: `user_code_keras.py`. See test_user_code.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf
from linear_training import LR, WIDTH, NoData, batch_of, done, said_of_changes

from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.state_sync import assert_equal_weights
from hvdtrain.topology import detect_topology


class Unused(NoData):
    """Its last layer, which is the first rank's part of what is sharded, is not used."""

    framework = "tensorflow"

    def build_model(self) -> Any:
        inputs = keras.Input((WIDTH,))
        used = keras.layers.Dense(1, name="used", kernel_initializer="ones")(inputs)
        return keras.Model(inputs, [used, keras.layers.Dense(3, name="unused", kernel_initializer="ones")(inputs)])

    def build_optimizer(self, model: Any, lr: float) -> Any:  # noqa: ARG002
        return keras.optimizers.AdamW(lr, weight_decay=0.5)

    def measure(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"loss": tf.square(model(batch["x"])[0][:, 0] - batch["y"])}


CASES: Final[list[dict[str, Any]]] = [
    {},
    {"shard": "optimizer"},
    {"shard": "optimizer", "bucket_cap_mb": 0.000001},  # of one bias only the first rank has a part
    {"shard": "gradients", "accumulate_steps": 2},
    {"sync_every": 1},
]


def check_unused(comm: Communicator) -> None:
    """With shards and without: neither moved nor decayed; and updates are counted on all ranks."""
    rank, size = comm.topology.rank, comm.topology.size
    used = []
    for options in CASES:
        adapter = KerasAdapter(Unused(), comm.topology, 1, LR, TrainingOptions(**options))
        for step in range(3):
            adapter.train_step(batch_of(size, step, [rank]), step, LR)
        assert int(adapter.optimizer.iterations) == 3, options
        state = adapter.view_state()
        assert_equal_weights(comm, state, str(options))
        assert np.all(state["model/unused/kernel"] == 1), options
        used.append(state["model/used/kernel"])
    for weights in used[1:-1]:
        np.testing.assert_allclose(weights, used[0], rtol=1e-5)


def refusal(comm: Communicator, change: Callable[[KerasAdapter], object]) -> str:
    """What `take_changes` says on this rank, after user code has done something on it."""
    adapter = KerasAdapter(Unused(), comm.topology, 1, LR, TrainingOptions())
    change(adapter)
    return said_of_changes(adapter, comm)


def check_refused(comm: Communicator) -> None:
    """On all ranks together, where only one of them has changed something."""
    last = comm.topology.rank == comm.topology.size - 1
    fact = refusal(comm, lambda adapter: setattr(adapter.model.get_layer("used"), "trainable", not last))
    assert fact.startswith(f"On rank {comm.topology.size - 1}: User code has changed `trainable` of 'used/"), fact
    assert refusal(comm, lambda _: None) == "nothing"


if __name__ == "__main__":
    communicator = open_communicator("tensorflow", detect_topology(os.environ), 60)
    check_unused(communicator)
    check_refused(communicator)
    communicator.close()
    done(communicator.topology.rank)
