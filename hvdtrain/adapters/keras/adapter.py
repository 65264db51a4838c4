"""The Keras 3 adapter (TensorFlow backend): one compiled step, gradients summed over ranks inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import State, Sums
from hvdtrain.adapters.keras.state import drifting_buffers, load_drifting, load_state, read_state, seed_states
from hvdtrain.adapters.keras.usable import require_usable
from hvdtrain.adapters.seeds import mix
from hvdtrain.comm.failure import peer_failures
from hvdtrain.task import Task, check_measures, sample_weights
from hvdtrain.topology import Topology


@final
class KerasAdapter:
    """Implements `Adapter`. Arguments as `TorchAdapter`'s.

    The whole step is one `tf.function`, so that TensorFlow starts each gradient's allreduce as soon as that gradient
    is there. It is not compiled by XLA: Horovod's operations cannot be.
    """

    def __init__(self, task: Task, topology: Topology, seed: int, lr: float) -> None:
        keras.utils.set_random_seed(seed)
        self._task = task
        self._world = topology.size
        self.model: keras.Model = task.build_model()
        self.optimizer: keras.optimizers.Optimizer = task.build_optimizer(self.model, lr)
        require_usable(self.model, self.optimizer)
        self.optimizer.build(self.model.trainable_variables)
        self._seed, self._rank = seed, topology.rank
        self._seed_states = seed_states(self.model)
        self._waited = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._sums: dict[str, tf.Variable] = {}
        self._train: Callable[..., None] = tf.function(self._train_graph, jit_compile=False)
        self._eval: Callable[..., None] = tf.function(self._eval_graph, jit_compile=False)

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._create_sums(batch)
        # Random numbers are a function of (seed, rank, step), so that a resumed run draws the same ones.
        for place, state in enumerate(self._seed_states):
            mixed = mix(self._seed, self._rank, step, place)
            state.assign(np.array([mixed >> 32, mixed & 0xFFFFFFFF], np.uint32))
        with peer_failures():
            self._train(*_tensors(batch), tf.constant(lr, tf.float32))

    def eval_step(self, batch: LoadedBatch) -> None:
        self._create_sums(batch)
        self._eval(*_tensors(batch))

    def _train_graph(self, features: dict[str, Any], real: Any, shares: Any, lr: Any) -> None:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            measures = self._task.measure(_Mode(self.model, training=True), features)
            # Penalties on weights count once, not once a rank: each rank adds its share of the batch's samples.
            loss = tf.reduce_sum(tf.cast(measures["loss"], tf.float32) * shares)
            if self.model.losses:
                loss += tf.cast(tf.add_n(self.model.losses), tf.float32) * tf.reduce_sum(shares)
        gradients = tape.gradient(loss, [v.value for v in variables])
        self._add(measures, real)
        if self._world > 1:
            gradients = self._sum_over_ranks(gradients, variables)
        self.optimizer.learning_rate.assign(lr)
        self.optimizer.apply(gradients, variables)

    def _sum_over_ranks(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        from hvdtrain.adapters.keras.gradients import sum_gradients  # imports Horovod, which one process does not need

        with tf.control_dependencies([g for g in gradients if g is not None]):
            ready = tf.timestamp()
        summed = sum_gradients(gradients, variables)
        with tf.control_dependencies([g for g in summed if g is not None]):
            self._waited.assign_add(tf.timestamp() - ready)
        return summed

    def _eval_graph(self, features: dict[str, Any], real: Any, shares: Any) -> None:  # noqa: ARG002  same call as training's
        self._add(self._task.measure(_Mode(self.model, training=False), features), real)

    def _add(self, measures: dict[str, Any], real: Any) -> None:
        for name, value in measures.items():
            self._sums[name].assign_add(tf.reduce_sum(tf.cast(value, tf.float64) * tf.cast(real, tf.float64)))

    def _create_sums(self, batch: LoadedBatch) -> None:
        """Variables must exist before the step is traced, and only the task knows the measures' names."""
        if self._sums:
            return
        features, _, _ = _tensors(batch)
        measures = self._task.measure(_Mode(self.model, training=False), features)
        check_measures(measures, len(batch.ids))
        self._sums = {name: tf.Variable(0.0, dtype=tf.float64, trainable=False) for name in measures}

    def read_sums(self) -> Sums:
        sums = Sums({name: float(value.numpy()) for name, value in self._sums.items()}, float(self._waited.numpy()))
        for variable in [*self._sums.values(), self._waited]:
            variable.assign(0.0)
        return sums

    def state(self) -> State:
        return read_state(self.model, self.optimizer)

    def load_state(self, state: State) -> None:
        load_state(self.model, self.optimizer, state)

    def drifting(self) -> State:
        return drifting_buffers(self.model)

    def load_drifting(self, buffers: State) -> None:
        load_drifting(self.model, buffers)

    def parameter_count(self) -> int:
        return sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)


class _Mode:
    """The model with Keras's `training` flag set, so that a task's measure() need not know where it is called."""

    def __init__(self, model: Any, training: bool) -> None:
        self._model = model
        self._training_flag = training

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._model(*inputs, **{"training": self._training_flag, **options})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _tensors(batch: LoadedBatch) -> tuple[dict[str, Any], Any, Any]:
    features = {name: tf.convert_to_tensor(array) for name, array in batch.features.items()}
    shares = sample_weights(batch.weights, batch.global_weight)
    return features, tf.convert_to_tensor(batch.weights), tf.convert_to_tensor(shares)
