"""The Keras 3 adapter (TensorFlow backend): one compiled step, gradients summed over ranks inside it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals, Sums, added_totals, totals_of
from hvdtrain.adapters.agreed_changes import agree_on_trained
from hvdtrain.adapters.base import AdapterState
from hvdtrain.adapters.choose_sync import bucket_bytes
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.keras import state
from hvdtrain.adapters.keras.build import build_model, open_gradient_sync, open_optimizer, require_supported
from hvdtrain.adapters.keras.calling import (
    called_for,
    checked_measures,
    converted,
    own_seed_state,
    task_errors,
    widened,
)
from hvdtrain.adapters.keras.compiled import CompiledStep, SeveralSteps, StepNumbers, graph, keep_passes_equal
from hvdtrain.adapters.keras.device import apply_settings, memory_peak, require_threads
from hvdtrain.adapters.keras.gradient_sync import GradientSum, GradientSync
from hvdtrain.adapters.keras.graph_clock import GraphStepTimer, Waiting, current_wait
from hvdtrain.adapters.keras.measure_sums import MeasureSums
from hvdtrain.adapters.keras.micro_batch import MicroBatch, in_micro_batches, of_workers
from hvdtrain.adapters.keras.own_state import UpdateDraws, seed_stateful_draws, tell_what_is_not_kept, unchanged
from hvdtrain.adapters.keras.pass_checks import KerasPassChecks
from hvdtrain.adapters.keras.sharded_state import ShardedArrays
from hvdtrain.adapters.keras.sharded_sync import ShardedSync
from hvdtrain.adapters.keras.state import seed_states
from hvdtrain.adapters.keras.update import KerasWeightAverage, Update
from hvdtrain.adapters.keras.user_changes import UserChanges
from hvdtrain.adapters.keras.virtual_sync import KerasWorkerStates, WorkersGradients
from hvdtrain.adapters.step_timer import PARTS
from hvdtrain.adapters.worker_states import weights_written
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.ema import NoAverage
from hvdtrain.algorithms.interval_sums import IntervalSums, mean_and_peak
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.algorithms.micro_batches import mix
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.predicting import RecordedModel, check_predictions
from hvdtrain.task.task import Task, require_trainable
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor that numpy has an array for."""
    return tf.is_tensor(value) and not isinstance(value, tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices)


class KerasAdapter(AdapterState):
    """Implements `Adapter`; arguments as those of `open_adapter`.

    The whole step is one `tf.function`, so that TensorFlow starts each bucket's communication as soon as its last
    gradient is ready. XLA cannot compile Horovod's operations; with --compile it compiles the part before them.
    """

    compiles_buckets = True
    pass_checks: KerasPassChecks | None = None
    _arrays = state
    _gradient_sync: GradientSync
    _update: Update
    _lr: float | None  # of the last step

    def __init__(
        self,
        task: Task,
        topology: Topology,
        seed: int,
        lr: float,
        options: TrainingOptions,
        workers: VirtualWorkers | None = None,
    ) -> None:
        require_supported(options)
        keras.utils.set_random_seed(seed)
        apply_settings(options.precision, options.same_bits)
        self._task, self._options = task, options
        self._seed, self._rank = seed, topology.rank
        self.model: keras.Model = build_model(task, options, topology)
        self.optimizer: keras.optimizers.Optimizer = open_optimizer(
            task, self.model, lr, options, alone=not topology.is_distributed
        )
        self._seed_states = [*seed_states(self.model), own_seed_state()]
        self._waiting = Waiting()
        self._timer = GraphStepTimer(_told_parts(options, topology), options.steps_per_call)
        sync = open_gradient_sync(self.model, self.optimizer, topology, options, self._waiting, workers)
        self._gradient_sync, self._workers = sync, workers
        if isinstance(self._gradient_sync, ShardedSync):
            self._sharded = ShardedArrays(self._gradient_sync)
        by_rank = self._sharded is not None or options.sync_every  # else all ranks make the same update
        self._update_draws = UpdateDraws(self.optimizer, seed, topology.rank if by_rank else 0)
        loss_scale, norm = LossScale() if options.precision == "fp16" else None, self._gradient_sync.total_norm
        clipping = Clipping(options.max_grad_norm, options.log_grad_norm)
        self._update = Update(self.optimizer, clipping, loss_scale, norm)
        self._updated = self._gradient_sync.updated(self.model.trainable_variables)
        self._sums_reduced = options.shard == "gradients"  # so that no rank keeps more than its part
        summed = self._updated if self._sums_reduced else self.model.trainable_variables
        self._gradient_sum = GradientSum(summed) if options.accumulate_steps > 1 else None
        self._worker_sync = sync if isinstance(sync, WorkersGradients) else None
        if workers is not None:
            require_threads()
            keep_passes_equal()
            states = self.worker_states = KerasWorkerStates(self.model, state, workers)
            variables, most = self.model.trainable_variables, len(workers.own)
            passes = self._repeat_pass, self._evaluated, self._forget_repeat
            self.pass_checks = KerasPassChecks(variables, states, most, *passes)
        self._average = NoAverage() if options.ema_decay is None else KerasWeightAverage(self.model, options.ema_decay)
        self._changes, self._lr = UserChanges(self.model, self.optimizer), None
        self._sums = MeasureSums(1 if workers is None else len(workers.own))
        self._measured_layouts: set[object] = set()
        self._skipped, self._has_graphs = 0, False
        self._open_graphs()

    def _open_graphs(self) -> None:
        self._measure_in_graph = converted(self._task.measure)
        self._gradients: Callable[..., Any] = (
            graph(self._gradients_graph, jit_compile=True) if self._options.compile else self._gradients_graph
        )
        self._collect = CompiledStep(self._collect_graph)
        self._collect_noted, self._train_noted = CompiledStep(self._collect_graph), CompiledStep(self._train_graph)
        self._forget_repeat()
        self._train = CompiledStep(self._train_graph)
        self._train_several = SeveralSteps(self._train_graph)
        self._trains = {bucket_bytes(self._options): self._train}
        self._eval = CompiledStep(self._eval_graph)
        self._eval_with_output = graph(self._eval_with_output_graph)
        self._predict_in_graph = converted(self._task.predict)
        self._predict = graph(self._predict_graph)

    def take_changes(self, comm: Communicator) -> None:
        agree_on_trained(comm, lambda: self._changes.look(self._lr))

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._lr = lr
        self._before_graphs(step)
        *parts, last = self._micro_batches(batch)
        layout = _layout(last.batch)
        self._create_sums(layout, last.batch)
        with self._syncing(), task_errors():
            for part in parts:
                collect = self._collect_noted if self._begin(part) else self._collect
                collect(_layout(part.batch), *self._copied(part, step, lr))
                if self._worker_sync is not None:
                    self._worker_sync.end_worker(part.worker)
            train = self._train_noted if self._begin(last) else self._train
            changed, norm = train(layout, *self._copied(last, step, lr))
            self._timer.end_steps(1)
            self._gradient_sync.after_update(step)
        self._skipped += not self._update.after_step(changed, norm)

    def train_steps(self, batches: Sequence[LoadedBatch], step: int, lrs: Sequence[float]) -> None:
        if self._options.steps_per_call == 1:
            super().train_steps(batches, step, lrs)
            return
        self._lr = lrs[-1]
        self._before_graphs(step)
        numbered = zip(map(self._gradient_sync.weighed, batches), range(step, step + len(batches)), lrs, strict=True)
        for layout, group in groupby(numbered, lambda update: _layout(update[0])):
            updates = list(group)
            self._create_sums(layout, updates[0][0])
            numbers = [self._numbers(MicroBatch(batch, self._rank), number, lr) for batch, number, lr in updates]
            with self._syncing(), task_errors():
                norms = self._train_several(layout, [batch for batch, _, _ in updates], numbers)
            self._timer.end_steps(len(updates))
            self._update.after_steps(norms)

    def _before_graphs(self, step: int) -> None:
        if not self._has_graphs:
            self._has_graphs = True
            tell_what_is_not_kept(self.model, self._options.precision)
            seed_stateful_draws(self._seed, self._rank, step)

    def set_bucket_cap(self, cap: int) -> None:
        super().set_bucket_cap(cap)
        # A graph holds the buckets with which it was traced.
        self._train = self._trains.setdefault(cap, CompiledStep(self._train_graph))
        self._train_several = SeveralSteps(self._train_graph)

    def _syncing(self) -> AbstractContextManager[None]:
        return waits_for_peers(current_wait)

    def _micro_batches(self, batch: LoadedBatch) -> list[MicroBatch]:
        """Those of a step; with virtual workers one for each of this worker's own."""
        if self._workers is None:
            return in_micro_batches(self._gradient_sync.weighed(batch), self._options.accumulate_steps, self._rank)
        return of_workers(batch, self._workers)

    def _begin(self, part: MicroBatch) -> bool:
        """Its pass follows. Returns whether its gradients are to be noted."""
        if self.worker_states is None or self.pass_checks is None:
            return False
        self.worker_states.use(part.worker)
        self._sums.use(part.row)
        return self.pass_checks.notes(part.worker)

    def _repeat_pass(self, part: MicroBatch, step: int) -> None:
        with task_errors():
            self._repeat(layout := _layout(part.batch), *self._copied(part, step, 0.0))
        if self._repeat.writes(layout, self.model.trainable_variables):
            raise weights_written()

    def _forget_repeat(self) -> None:
        self._repeat = CompiledStep(self._repeat_graph)

    def _numbers(self, part: MicroBatch, step: int, lr: float) -> NDArray[np.float64]:
        """Random numbers are a function of (seed, rank, step, micro batch), so that a resumed run draws the same."""
        places = range(len(self._seed_states))
        seeds = [mix(self._seed, part.worker, step, part.number, place) for place in places]
        return StepNumbers(step, lr, self._update.scale, max(part.batch.global_weight, 1.0), seeds).packed()

    def _copied(self, part: MicroBatch, step: int, lr: float) -> tuple[Any, ...]:
        """Features, weights and numbers of a micro batch, on the device."""
        begin = time.perf_counter()
        tensors = *self._tensors(part.batch), tf.constant(self._numbers(part, step, lr))
        self._timer.copied(begin)
        return tensors

    def eval_step(self, batch: LoadedBatch) -> None:
        if self._workers is None:
            self._create_sums(_layout(batch), batch)
            self._eval(_layout(batch), *self._tensors(batch))
            return
        for part in self._micro_batches(batch):
            self._eval_part(part, batch.step)

    def _eval_part(self, part: MicroBatch, step: int) -> None:
        self._create_sums(_layout(part.batch), part.batch)
        self._sums.use(part.row)
        for place, variable in enumerate(self._seed_states):  # for models that draw in validation
            seed = mix(self._seed, part.worker, step, place)
            variable.assign([seed >> 32, seed & 0xFFFFFFFF])
        self._eval(_layout(part.batch), *self._tensors(part.batch))

    def _evaluated(self, part: MicroBatch, step: int) -> MeasureTotals:
        before = self._sums.take()
        with task_errors():
            self._eval_part(part, step)
        measured = self._sums.take()[part.row]
        self._sums.begin(before)
        return measured

    def eval_with_output(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        self._create_sums(_layout(batch), batch)
        with task_errors():
            return self._on_host(self._eval_with_output(*self._tensors(batch)), batch)

    def predict_step(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        features, _ = self._tensors(batch)
        with task_errors():
            return self._on_host(self._predict(features), batch)

    def _on_host(self, predictions: Any, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        check_predictions(predictions, len(batch.ids), type(self._task).__name__, _is_plain)
        return {name: widened(value).numpy() for name, value in predictions.items()}

    def _predict_graph(self, features: dict[str, Any]) -> Any:
        with called_for(self.model, False) as model:
            return self._predict_in_graph(model, features)

    def _eval_with_output_graph(self, features: dict[str, Any], real: Any) -> dict[str, Any]:
        with called_for(self.model, False) as model:
            recorded = RecordedModel(model)
            measures = self._measure_in_graph(recorded, features)
        self._sums.add(checked_measures(measures, real.shape[0]), real)
        return {"output": recorded.output(type(self._task).__name__)}

    def _gradients_graph(
        self, features: dict[str, Any], real: Any, shares: Any, scale: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        mask = tf.cast(real, tf.bool) if self._options.sync_batch_norm else None
        with tf.GradientTape() as tape, batch_mask(mask):
            measures = self._measure(features, real.shape[0], training=True)
            # Penalties on weights count once, not once a rank: each rank adds its share of the batch's samples.
            loss = tf.reduce_sum(tf.cast(measures["loss"], tf.float32) * shares)
            if self.model.losses:
                losses = [tf.cast(added, tf.float32) for added in self.model.losses]
                loss += tf.add_n(losses) * tf.reduce_sum(shares)
            loss *= scale
            if not self._options.compile:  # XLA has no clock
                self._timer.mark("forward", [loss])
        gradients = tape.gradient(loss, [v.value for v in self.model.trainable_variables])
        require_trainable(any(gradient is not None for gradient in gradients))
        return gradients, measures

    def _micro_batch(self, features: dict[str, Any], real: Any, packed: Any) -> tuple[list[Any], StepNumbers]:
        """Its gradients, reduced where reduced ones are summed; measures are added to the sums."""
        gradients, measures, numbers = self._pass(features, real, packed)
        self._sums.add(measures, real)
        if self.pass_checks is not None and self.pass_checks.active:
            self.pass_checks.put(gradients)
        return self._reduced(gradients) if self._sums_reduced else gradients, numbers

    def _pass(self, features: dict[str, Any], real: Any, packed: Any) -> tuple[list[Any], dict[str, Any], StepNumbers]:
        """Forward and backward: gradients and measures of a micro batch, and its numbers."""
        self._timer.begin((features, packed))
        numbers = StepNumbers.unpacked(packed)
        for variable, seed in zip(self._seed_states, tf.unstack(numbers.seeds, len(self._seed_states)), strict=True):
            variable.assign(seed)
        # Each sample's share in the mean over the global batch, float32 [n]; they sum to 1 over all ranks.
        shares = real / numbers.global_weight * self._gradient_sync.loss_multiplier
        gradients, measures = self._gradients(features, real, shares, numbers.scale)
        self._timer.mark("backward", gradients)
        return gradients, measures, numbers

    def _repeat_graph(self, features: dict[str, Any], real: Any, packed: Any) -> None:
        """A pass of which only the checksums are kept."""
        assert self.pass_checks is not None
        self.pass_checks.put(self._pass(features, real, packed)[0])
        self._timer.end(is_last=False)

    def _collect_graph(self, features: dict[str, Any], real: Any, packed: Any) -> None:
        """A micro batch that others follow."""
        gradient_sum = self._worker_sync or self._gradient_sum
        assert gradient_sum is not None
        gradient_sum.add(self._micro_batch(features, real, packed)[0])
        self._timer.end(is_last=False)

    def _train_graph(self, features: dict[str, Any], real: Any, packed: Any) -> Any:
        gradients: Sequence[Any]
        gradients, numbers = self._micro_batch(features, real, packed)
        if (gradient_sum := self._worker_sync or self._gradient_sum) is not None:
            gradients = gradient_sum.take(gradients)
        used, variables = _used(gradients if self._sums_reduced else self._reduced(gradients), self._updated)
        self.optimizer.learning_rate.assign(numbers.lr)
        self._update_draws.begin(numbers.step)
        changed, norm = self._update.apply(used, variables, numbers.scale)
        if not used:  # Keras counts no update without gradients; with shards other ranks may have some
            self.optimizer.iterations.assign_add(1)
        self._timer.mark("optimizer", [tf.convert_to_tensor(variable) for variable in self._updated])
        if self._sharded is not None:
            self._gradient_sync.distribute()
            self._timer.mark("allreduce", [tf.convert_to_tensor(v) for v in self.model.trainable_variables])
        self._average.update(numbers.step)
        self._timer.end(is_last=True)
        return changed, norm

    def _reduced(self, gradients: Sequence[Any]) -> list[Any]:
        variables = self.model.trainable_variables
        first = self._gradient_sync.first_sent()
        if first:
            self._timer.sending([gradients[place] for place in first])
        return self._timer.mark_before("allreduce", self._gradient_sync.reduce(gradients, variables))

    def _eval_graph(self, features: dict[str, Any], real: Any) -> None:
        self._sums.add(self._measure(features, real.shape[0], training=False), real)

    def _measure(self, features: dict[str, Any], samples: int, training: bool) -> dict[str, Any]:
        measure = self._task.measure if tf.executing_eagerly() else self._measure_in_graph
        with called_for(self.model, training) as model:
            measures = measure(model, features)
        return checked_measures(measures, samples)

    def _create_sums(self, layout: object, batch: LoadedBatch) -> None:
        """Only the task knows the names of a batch's measures."""
        if layout in self._measured_layouts:
            return
        self._measured_layouts.add(layout)
        features, _ = self._tensors(batch)
        with unchanged(self.model):
            self._sums.create(self._measure(features, len(batch.ids), training=False))

    def _tensors(self, batch: LoadedBatch) -> tuple[dict[str, Any], Any]:
        return {name: tf.constant(array) for name, array in batch.features.items()}, tf.constant(batch.weights)

    def read_sums(self) -> Sums:
        by_worker = self._sums.take()
        values, samples = added_totals(by_worker)
        norms, memory = self._update.norms.read(), memory_peak()
        parts = self._timer.take()
        waited = self._waiting.take()
        told = *mean_and_peak(norms), norms, parts
        sums = Sums(values, waited, self._skipped, *told, device_memory=memory, samples=samples)
        self._skipped = 0
        return sums if self._workers is None else replace(sums, by_worker=by_worker)

    def continue_sums(self, before: IntervalSums) -> None:
        assert self._workers is not None
        self._sums.begin([totals_of(before, worker) for worker in self._workers.own])
        self._update.continue_norms(before.norms)

    def take_part_times(self) -> Mapping[str, QuantileSketch]:
        return self._timer.take_sketches()

    def parameter_count(self) -> int:
        return sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)


def _told_parts(options: TrainingOptions, topology: Topology) -> list[str]:
    """The parts of a step that can be told apart."""
    without_clock = ("forward",) if options.compile else ()  # XLA has none: what it compiles is one part
    alone = () if topology.is_distributed else ("allreduce", "allreduce_hidden")
    return [name for name in PARTS if name not in (*without_clock, *alone)]


def _layout(batch: LoadedBatch) -> tuple[object, ...]:
    """What must be equal for two batches to be trained by one graph."""
    return tuple([(name, array.shape, array.dtype.num) for name, array in batch.features.items()])


def _used(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Those that have a gradient: Keras must neither decay nor move the others. All ranks trace the same ones."""
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
