"""The Keras 3 adapter (TensorFlow backend): one compiled step, gradients summed over ranks inside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import Sums
from hvdtrain.adapters.keras.accumulation import GradientSum
from hvdtrain.adapters.keras.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.keras.batch_mask import batch_mask
from hvdtrain.adapters.keras.calling import called_for, own_seed_state
from hvdtrain.adapters.keras.ema import WeightAverage
from hvdtrain.adapters.keras.gradient_sync import open_gradient_sync
from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.adapters.keras.settings import apply_settings, built_for
from hvdtrain.adapters.keras.state import drifting_buffers, load_rank_local_state, load_state, read_state, seed_states
from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm, horovod_sum
from hvdtrain.adapters.keras.tracing import task_errors
from hvdtrain.adapters.keras.update import PlainUpdate, ScaledUpdate
from hvdtrain.adapters.keras.usable import require_known_knobs, require_usable
from hvdtrain.adapters.keras.waiting import standing
from hvdtrain.adapters.seeds import mix
from hvdtrain.algorithms.ema import NoAverage
from hvdtrain.algorithms.micro_batches import micro_batches
from hvdtrain.comm.failure import waits_for_peers
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.state import State
from hvdtrain.task.interface import Task, check_measures, require_trainable, sample_weights
from hvdtrain.topology import Topology


@final
class KerasAdapter:
    """Implements `Adapter`. Arguments as `TorchAdapter`'s.

    The whole step is one `tf.function`, so that TensorFlow starts each gradient's allreduce as soon as that gradient
    is there. Horovod's operations cannot be compiled by XLA, so that only the part before them is, if it is asked for.
    """

    def __init__(
        self,
        task: Task,
        topology: Topology,
        seed: int,
        lr: float,
        options: TrainingOptions = TrainingOptions(),  # noqa: B008  frozen
    ) -> None:
        require_known_knobs(options)
        keras.utils.set_random_seed(seed)
        apply_settings(options.precision, options.deterministic)
        self._task, self._knobs = task, options
        self._seed, self._rank = seed, topology.rank
        with built_for(options.precision):
            self.model: keras.Model = task.build_model()
        if options.sync_batch_norm:
            convert_sync_batch_norm(self.model, horovod_sum if topology.is_distributed else None)
        if options.activation_checkpointing:
            checkpoint_activations(self.model)
        self.optimizer: keras.optimizers.Optimizer = _optimizer(task, self.model, lr, options)
        require_usable(self.model, self.optimizer)
        self.optimizer.build(self.model.trainable_variables)
        self._seed_states = [*seed_states(self.model), own_seed_state()]
        self._gradient_sync = open_gradient_sync(self.model, self.optimizer, topology, options)
        self._update = (ScaledUpdate if options.precision == "fp16" else PlainUpdate)(
            self.optimizer, options.max_grad_norm
        )
        self._gradient_sum = GradientSum(self.model.trainable_variables) if options.accumulate_steps > 1 else None
        self._average = NoAverage() if options.ema_decay is None else WeightAverage(self.model, options.ema_decay)
        self._sums: dict[str, tf.Variable] = {}
        self._skipped = 0
        self._gradients: Callable[..., Any] = (
            tf.function(self._gradients_graph, jit_compile=True) if options.compile else self._gradients_graph
        )
        self._collect: Callable[..., None] = tf.function(self._collect_graph, jit_compile=False)
        self._train: Callable[..., Any] = tf.function(self._train_graph, jit_compile=False)
        self._eval: Callable[..., None] = tf.function(self._eval_graph, jit_compile=False)

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._create_sums(batch)
        *parts, last = micro_batches(batch, self._knobs.accumulate_steps)
        scale, rate = tf.constant(self._update.scale, tf.float32), tf.constant(lr, tf.float32)
        with waits_for_peers(standing), task_errors():
            for number, part in enumerate(parts):
                self._draw_anew(step, number)
                self._collect(*self._tensors(part), scale)
            self._draw_anew(step, len(parts))
            changed, norm = self._train(*self._tensors(last), scale, rate, tf.constant(step, tf.int64))
            self._gradient_sync.after_update(step)
        self._skipped += not self._update.after_step(changed, norm)

    def _draw_anew(self, step: int, number: int) -> None:
        """Random numbers are a function of (seed, rank, step, micro batch), so that a resumed run draws the same."""
        for place, state in enumerate(self._seed_states):
            mixed = mix(self._seed, self._rank, step, number, place)
            state.assign(np.array([mixed >> 32, mixed & 0xFFFFFFFF], np.uint32))

    def eval_step(self, batch: LoadedBatch) -> None:
        self._create_sums(batch)
        features, real, _ = self._tensors(batch)
        self._eval(features, real)

    def evaluating(self) -> AbstractContextManager[None]:
        return self._average.swapped()

    def _gradients_graph(
        self, features: dict[str, Any], real: Any, shares: Any, scale: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        with tf.GradientTape() as tape, batch_mask(real if self._knobs.sync_batch_norm else None):
            measures = self._measure(features, training=True)
            # Penalties on weights count once, not once a rank: each rank adds its share of the batch's samples.
            loss = tf.reduce_sum(tf.cast(measures["loss"], tf.float32) * shares)
            if self.model.losses:
                loss += tf.cast(tf.add_n(self.model.losses), tf.float32) * tf.reduce_sum(shares)
            loss *= scale
        gradients = tape.gradient(loss, [v.value for v in self.model.trainable_variables])
        require_trainable(any(gradient is not None for gradient in gradients))
        return gradients, measures

    def _collect_graph(self, features: dict[str, Any], real: Any, shares: Any, scale: Any) -> None:
        """A micro batch that others follow."""
        gradients, measures = self._gradients(features, real, shares, scale)
        assert self._gradient_sum is not None
        self._gradient_sum.add(gradients)
        self._add(measures, real)

    def _train_graph(self, features: dict[str, Any], real: Any, shares: Any, scale: Any, lr: Any, step: Any) -> Any:
        variables = self.model.trainable_variables
        gradients, measures = self._gradients(features, real, shares, scale)
        if self._gradient_sum is not None:
            gradients = self._gradient_sum.take(gradients)
        self._add(measures, real)
        gradients = _for_all(self._gradient_sync.reduce(gradients, variables), variables)
        self.optimizer.learning_rate.assign(lr)
        changed, norm = self._update.apply(gradients, variables, scale)
        self._average.update(step)
        return changed, norm

    def _eval_graph(self, features: dict[str, Any], real: Any) -> None:
        self._add(self._measure(features, training=False), real)

    def _measure(self, features: dict[str, Any], training: bool) -> dict[str, Any]:
        with called_for(self.model, training) as model:
            return self._task.measure(model, features)

    def _add(self, measures: dict[str, Any], real: Any) -> None:
        for name, value in measures.items():
            self._sums[name].assign_add(tf.reduce_sum(tf.cast(value, tf.float64) * tf.cast(real, tf.float64)))

    def _create_sums(self, batch: LoadedBatch) -> None:
        """Variables must exist before the step is traced, and only the task knows the measures' names."""
        if self._sums:
            return
        features, _, _ = self._tensors(batch)
        measures = self._measure(features, training=False)
        check_measures(measures, len(batch.ids))
        self._sums = {name: tf.Variable(0.0, dtype=tf.float64, trainable=False) for name in measures}

    def _tensors(self, batch: LoadedBatch) -> tuple[dict[str, Any], Any, Any]:
        """Features, weights, and shares in the loss."""
        features = {name: tf.convert_to_tensor(array) for name, array in batch.features.items()}
        shares = sample_weights(batch.weights, batch.global_weight) * np.float32(self._gradient_sync.loss_multiplier)
        return features, tf.convert_to_tensor(batch.weights), tf.convert_to_tensor(shares)

    def read_sums(self) -> Sums:
        values = {name: float(value.numpy()) for name, value in self._sums.items()}
        sums = Sums(values, self._gradient_sync.waited(), self._skipped, self._update.norms.read())
        for variable in self._sums.values():
            variable.assign(0.0)
        self._skipped = 0
        return sums

    def state(self) -> State:
        carried = self._average.state() | self._update.state() | self._gradient_sync.state()
        return read_state(self.model, self.optimizer) | carried

    def load_state(self, state: State) -> None:
        load_state(
            self.model, self.optimizer, {n: a for n, a in state.items() if n.startswith(("model/", "optimizer/"))}
        )
        self._average.load_state(state)
        self._update.load_state(state)
        self._gradient_sync.load_state(state)

    def rank_local_state(self) -> State:
        with waits_for_peers():
            self._gradient_sync.average_weights()
        averages = self._average.state() if self._knobs.sync_every else {}  # each rank's, of its own weights
        return drifting_buffers(self.model) | self._gradient_sync.rank_local_state() | averages

    def load_rank_local_state(self, buffers: State) -> None:
        load_rank_local_state(self.model, buffers)
        self._gradient_sync.load_rank_local_state(buffers)
        if self._knobs.sync_every:
            self._average.load_state(buffers)

    def parameter_count(self) -> int:
        return sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)


def _for_all(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Zeros where the loss needs no gradient, so that Keras decays those weights too, as torch does here."""
    return [tf.zeros_like(v.value) if g is None else g for g, v in zip(gradients, variables, strict=True)]


def _optimizer(task: Task, model: keras.Model, lr: float, options: TrainingOptions) -> Any:
    return task.build_optimizer(model, lr) if options.optimizer is None else build_optimizer(model, lr, options)
