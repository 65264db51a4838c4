"""The PyTorch adapter: one model on one device, gradients summed over ranks by Horovod."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Sums, added_totals
from hvdtrain.adapters.agreed_changes import agree_on_trained
from hvdtrain.adapters.base import AdapterState
from hvdtrain.adapters.step_timer import ALLREDUCE, OPTIMIZER, PARTS, SpanSink, StepTimer
from hvdtrain.adapters.torch import state
from hvdtrain.adapters.torch.build import build_model, callable_for, open_gradient_sync, require_supported
from hvdtrain.adapters.torch.compiler_import import spare_compiler_import
from hvdtrain.adapters.torch.device import apply_settings, gpu_use, memory_peak, own_device
from hvdtrain.adapters.torch.gpu_step_timer import GpuStepTimer
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.adapters.torch.pass_checks import TorchPassChecks
from hvdtrain.adapters.torch.passes import Draws, Measurement, Passes, TrainingMode, WholeModelPasses
from hvdtrain.adapters.torch.sharded_state import ShardedArrays
from hvdtrain.adapters.torch.sharded_sync import ShardedSync
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.adapters.torch.update import TorchWeightAverage, Update, may_draw
from hvdtrain.adapters.torch.user_changes import UserChanges, groups_changed, require_rates
from hvdtrain.adapters.torch.virtual_passes import TorchWorkerStates, WorkersPasses
from hvdtrain.adapters.torch.virtual_sync import WorkersGradients
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.ema import NoAverage
from hvdtrain.algorithms.interval_sums import IntervalSums, mean_and_peak
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.stopwatch import Stopwatch
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers


class TorchAdapter(AdapterState):
    """Implements `Adapter`; arguments as those of `open_adapter`."""

    _arrays = state
    _gradient_sync: GradientSync
    _update: Update
    _passes: Passes
    _parameters: int

    def __init__(
        self,
        task: Task,
        topology: Topology,
        seed: int,
        lr: float,
        options: TrainingOptions,
        cuts: Sequence[int] = (),
        waiting: float = 300.0,
        workers: VirtualWorkers | None = None,
    ) -> None:
        require_supported(options)
        self._options, self._workers = options, workers
        self._device = own_device()
        apply_settings(options.precision, options.same_bits, self._device)
        self._is_distributed = topology.is_distributed
        spare_compiler_import()
        torch.manual_seed(seed)
        self._stopwatch, self._skipped = Stopwatch(), 0
        self._timer = GpuStepTimer() if self._device.type == "cuda" else StepTimer()
        if options.parallel.stages > 1:
            self._open_stages(task, topology, seed, lr, cuts, waiting)
        else:
            self._open_whole(task, topology, seed, lr)
        # A task may give its groups learning rates of their own; they keep their proportion to the schedule's.
        self._lr_factors = [group["lr"] / lr for group in self.optimizer.param_groups]
        self._average = NoAverage() if options.ema_decay is None else TorchWeightAverage(self.model, options.ema_decay)
        self._update_draws = Draws.on(self._device, seed, topology.rank)
        by_rank = self._sharded is not None or options.sync_every  # else replicas make the same update
        self._part = topology.rank if by_rank else self.stage or 0
        self._gradient_sync.sending = self._timer.sending
        fixed_by = "--parallel.stages" if options.parallel.stages > 1 else self._gradient_sync.fixed_by
        self._changes = UserChanges(self.model, self.optimizer, fixed_by, self._sharded is not None)
        self._rates: list[float] | None = None  # of each group, as the last step has set them

    def _open_whole(self, task: Task, topology: Topology, seed: int, lr: float) -> None:
        options = self._options
        self.model = build_model(task, options, self._device, topology.is_distributed)
        forward = callable_for(self.model, options, topology)
        self.optimizer = optimizer_of(task, self.model, lr, options)
        require_own_parameters(self.model, self.optimizer)
        sync = self._gradient_sync = open_gradient_sync(self.model, self.optimizer, topology, options, self._workers)
        if isinstance(sync, ShardedSync):
            self._sharded = ShardedArrays(sync)
            sync.waiting = self._interrupted
        self._open_update(sync.total_norm)
        draws = Draws.on(self._device, seed, topology.rank)
        measurement = Measurement(task, options.precision, self._device)
        mode = self._mode = TrainingMode([self.model])
        parts = forward, mode, options.accumulate_steps, draws, measurement, sync, self._update, self._timer
        if self._workers is None:
            self._passes = WholeModelPasses(*parts)
        else:
            self.worker_states = TorchWorkerStates(self.model, state, self._workers)
            measurements = [Measurement(task, options.precision, self._device, together=1) for _ in self._workers.own]
            passes = self._passes = WorkersPasses(*parts, self._workers, self.worker_states, measurements)
            assert isinstance(sync, WorkersGradients)
            self.pass_checks = TorchPassChecks(self.model, sync, passes, self.worker_states)
        self._parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def _open_stages(
        self, task: Task, topology: Topology, seed: int, lr: float, cuts: Sequence[int], waiting: float
    ) -> None:
        from hvdtrain.adapters.torch.pipeline.staged_model import Stages  # imports torch.fx

        options = self._options
        stages = Stages(task, topology, options, cuts, lr)
        self.model, self.optimizer, self._stage = stages.staged.model, stages.optimizer, stages.state
        self._gradient_sync = stages.gradient_sync
        self._open_update(stages.total_norm)
        self._passes = stages.passes(task, options, seed, self._update, self._timer, waiting)
        self._parameters, self._mode = stages.staged.parameters, TrainingMode([self.model, *stages.staged.modules])

    def _open_update(self, total_norm: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> None:
        options = self._options
        loss_scale = LossScale() if options.precision == "fp16" else None
        trained = self._gradient_sync.updated([p for p in self.model.parameters() if p.requires_grad])
        clipping = Clipping(options.max_grad_norm, options.log_grad_norm)
        self._update = Update(self.optimizer, trained, clipping, loss_scale, total_norm)

    def begin_epoch(self) -> None:
        self._mode.begin_epoch()

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._mode.set(True)
        self._passes.train(batch, step)
        timer = self._timer
        with self._waiting():
            self._gradient_sync.finish()
        timer.end_wait()
        self._set_lr(lr)
        if may_draw(self.optimizer):
            self._update_draws.begin_update(step, self._part)
        changed = self._update.step()
        if self._gradient_sync.acts_after_update:
            timer.end(OPTIMIZER)
            with self._waiting():
                self._gradient_sync.after_update(step)
            timer.end_wait()
        self._average.update(step)
        timer.end(OPTIMIZER)
        timer.end_step()
        self._gradient_sync.clear()
        self._skipped += not changed

    def _set_lr(self, lr: float) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self._lr_factors):
            raise groups_changed()
        if self._rates is not None:
            require_rates(groups, self._rates)
        self._rates = [lr * factor for factor in self._lr_factors]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def take_changes(self, comm: Communicator) -> None:
        agree_on_trained(comm, lambda: self._changes.look(self._rates), compares=self._stage is None)
        if unfrozen := self._changes.take_unfrozen():
            self._gradient_sync.set_trainable(self._changes.trained())
            self._update.include([parameter for _, parameter in unfrozen])
            self._average.include(dict(unfrozen))

    @property
    def threads(self) -> int:
        """Threads are not to be changed on GPUs, nor where the user or the launcher has chosen them."""
        return 0 if self._device.type != "cpu" or "OMP_NUM_THREADS" in os.environ else torch.get_num_threads()

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        """Mark a block between steps."""
        with self._stopwatch.span("average"), self._waiting():
            yield

    @contextmanager
    def _interrupted(self, part: int) -> Iterator[None]:
        """Mark a block inside a part of a step."""
        self._timer.end(part)
        with self._waiting():
            yield
        self._timer.end(ALLREDUCE)

    def _waiting(self) -> AbstractContextManager[None]:
        """Mark a block in a step, whose timer counts the time."""
        return waits_for_peers() if self._is_distributed else nullcontext()

    @torch.no_grad()
    def eval_step(self, batch: LoadedBatch) -> None:
        self._mode.set(False)
        self._passes.evaluate(batch)

    @torch.no_grad()
    def eval_with_output(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        return self._whole_passes().evaluate_with_output(batch)

    @torch.no_grad()
    def predict_step(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        return self._whole_passes().predict(batch)

    def _whole_passes(self) -> WholeModelPasses:
        if not isinstance(self._passes, WholeModelPasses):
            raise ValueError("a model in stages predicts nothing")
        return self._passes

    def read_sums(self) -> Sums:
        by_worker = self._passes.read_sums()
        (values, samples), norms = added_totals(by_worker), self._update.norms.read()
        parts = dict(zip(PARTS, self._timer.take(), strict=True))  # after the device has done all of them
        waited = parts.pop(PARTS[ALLREDUCE]) + self._stopwatch.take("average") if self._is_distributed else 0.0
        sums = Sums(
            values,
            waited,
            self._skipped,
            *mean_and_peak(norms),
            norms=norms,
            parts=parts,
            device_memory=memory_peak(self._device),
            device_use=gpu_use(self._device),
            samples=samples,
            by_worker=() if self._workers is None else by_worker,
        )
        self._skipped = 0
        return sums

    def continue_sums(self, before: IntervalSums) -> None:
        assert isinstance(self._passes, WorkersPasses)
        self._passes.continue_sums(before)
        self._update.continue_norms(before.norms)

    def take_part_times(self) -> Mapping[str, QuantileSketch]:
        sketches = self._timer.take_sketches()
        return {name: sketch for name, sketch in sketches.items() if self._is_distributed or "allreduce" not in name}

    def tell_parts(self, tell: SpanSink | None) -> None:
        self._timer.tell = tell

    def parameter_count(self) -> int:
        return self._parameters
