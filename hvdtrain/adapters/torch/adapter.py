"""The PyTorch adapter: one model on one device, gradients summed over ranks by Horovod."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.base import AdapterState
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.interface import Sums
from hvdtrain.adapters.laps import ALLREDUCE, BACKWARD, FORWARD, HOST_TO_DEVICE, OPTIMIZER, PARTS, Laps, SpanSink
from hvdtrain.adapters.torch import state
from hvdtrain.adapters.torch.build import build_model, callable_for, open_gradient_sync, require_supported
from hvdtrain.adapters.torch.compiler_import import spare_compiler_import
from hvdtrain.adapters.torch.device import apply_settings, gpu_use, low_precision, memory_peak, own_device
from hvdtrain.adapters.torch.gpu_laps import GpuLaps
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.light_calls import backward
from hvdtrain.adapters.torch.measure_sums import MeasureSums
from hvdtrain.adapters.torch.optimizers import build_optimizer
from hvdtrain.adapters.torch.sharded_state import ShardedArrays
from hvdtrain.adapters.torch.sharded_sync import ShardedSync
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.adapters.torch.update import TorchWeightAverage, Update
from hvdtrain.algorithms.ema import NoAverage
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.algorithms.micro_batches import micro_batches, mix
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.comm.failure import peer_failures, waits_for_peers
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.stopwatch import Stopwatch
from hvdtrain.task.interface import Task, check_measures, require_trainable
from hvdtrain.topology import Topology


class TorchAdapter(AdapterState):
    """Implements `Adapter`; arguments as those of `open_adapter`."""

    _arrays = state
    _gradient_sync: GradientSync
    _update: Update

    def __init__(self, task: Task, topology: Topology, seed: int, lr: float, options: TrainingOptions) -> None:
        require_supported(options)
        self._task, self._options = task, options
        self._device = own_device()
        apply_settings(options.precision, options.deterministic, self._device)
        self._seed, self._rank, self._is_distributed = seed, topology.rank, topology.is_distributed
        spare_compiler_import()
        torch.manual_seed(seed)
        self._generators = _generators_of(self._device)
        self.model = build_model(task, options, topology, self._device)
        self._forward = callable_for(self.model, options, topology)
        self.optimizer: torch.optim.Optimizer = _optimizer(task, self.model, lr, options)
        require_own_parameters(self.model, self.optimizer)
        # A task may give its groups learning rates of their own; they keep their proportion to the schedule's.
        self._lr_factors = [group["lr"] / lr for group in self.optimizer.param_groups]
        self._gradient_sync = open_gradient_sync(self.model, self.optimizer, topology, options)
        if isinstance(self._gradient_sync, ShardedSync):
            self._sharded = ShardedArrays(self._gradient_sync)
            self._gradient_sync.waiting = self._interrupted
        loss_scale = LossScale() if options.precision == "fp16" else None
        trained = self._gradient_sync.updated([p for p in self.model.parameters() if p.requires_grad])
        norm = self._gradient_sync.total_norm
        self._update = Update(self.optimizer, trained, options.max_grad_norm, loss_scale, options.log_grad_norm, norm)
        self._average = NoAverage() if options.ema_decay is None else TorchWeightAverage(self.model, options.ema_decay)
        self._sums = MeasureSums()
        self._stopwatch, self._skipped = Stopwatch(), 0
        self._laps = GpuLaps() if self._device.type == "cuda" else Laps()
        self._gradient_sync.sending = self._laps.sending
        self._checked = False
        self._training: bool | None = None
        self._equal_shares: tuple[tuple[int, float], torch.Tensor] | None = None

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self._set_training(True)
        parts = micro_batches(batch, self._options.accumulate_steps)
        for number, part in enumerate(parts):
            self._backward(part, step, number, number + 1 == len(parts))
        laps = self._laps
        with self._waiting():
            self._gradient_sync.finish()
        laps.end_wait()
        for group, factor in zip(self.optimizer.param_groups, self._lr_factors, strict=True):
            group["lr"] = lr * factor
        changed = self._update.step()
        if self._gradient_sync.acts_after_update:
            laps.end(OPTIMIZER)
            with self._waiting():
                self._gradient_sync.after_update(step)
            laps.end_wait()
        self._average.update(step)
        laps.end(OPTIMIZER)
        laps.end_step()
        self._gradient_sync.clear()
        self._skipped += not changed

    @property
    def threads(self) -> int:
        """Not to be changed on GPUs, nor where the user or the launcher has chosen them."""
        return 0 if self._device.type != "cpu" or "OMP_NUM_THREADS" in os.environ else torch.get_num_threads()

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def _syncing(self) -> AbstractContextManager[None]:
        """Between steps."""
        return self._between_steps() if self._is_distributed else nullcontext()

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        with self._stopwatch.span("average"), waits_for_peers():
            yield

    @contextmanager
    def _interrupted(self, part: int) -> Iterator[None]:
        """In a part of a step."""
        self._laps.end(part)
        with self._waiting():
            yield
        self._laps.end(ALLREDUCE)

    def _waiting(self) -> AbstractContextManager[None]:
        """In a step, whose laps count the time."""
        return waits_for_peers() if self._is_distributed else nullcontext()

    def _set_training(self, training: bool) -> None:
        """Layers are told where that changes, not at every step: to ask them all costs as much as a small layer."""
        if training != self._training:
            self.model.train(training)
            self._training = training

    def _backward(self, part: LoadedBatch, step: int, number: int, last: bool) -> None:
        """Add to the gradients, and to the sums of measures."""
        # Random numbers are a function of (seed, rank, step, micro batch), so that a resumed run draws the same ones.
        for generator in self._generators:
            generator.manual_seed(mix(self._seed, self._rank, step, number))
        laps = self._laps
        laps.begin()
        rows, features = _Rows.of(part.weights, self._place), self._placed(part)
        laps.end(HOST_TO_DEVICE)
        self._gradient_sync.set_grad_sync(last)
        with peer_failures():  # SyncBatchNorm reduces its statistics in the forward pass
            losses = self._measure(features, rows, len(part.ids))["loss"].float()
            share = self._gradient_sync.loss_multiplier * self._update.scale / max(part.global_weight, 1.0)
            require_trainable(losses.requires_grad)
            laps.end(FORWARD)
            backward(losses, self._shares(rows, losses, share))
            laps.end(BACKWARD)

    def _shares(self, rows: "_Rows", losses: torch.Tensor, share: float) -> torch.Tensor:
        """By what each loss counts, float32[n]: `share`, or 0. Made anew where something is different."""
        if rows.weights is not None:
            return rows.weights * share
        if self._equal_shares is None or self._equal_shares[0] != (len(losses), share):
            self._equal_shares = (len(losses), share), torch.full_like(losses, share)
        return self._equal_shares[1]

    @torch.no_grad()
    def eval_step(self, batch: LoadedBatch) -> None:
        self._set_training(False)
        self._measure(self._placed(batch), _Rows.of(batch.weights, self._place), len(batch.ids))

    def _measure(self, features: dict[str, torch.Tensor], rows: "_Rows", samples: int) -> dict[str, torch.Tensor]:
        """The task's measures of each of the samples, which the sums then contain for real ones."""
        with low_precision(self._options.precision, self._device), batch_mask(rows.real):
            measures = self._task.measure(self._forward, features)
        if not self._checked:
            check_measures(measures, samples)
            self._checked = True
        self._sums.add(measures, rows.weights)
        return measures

    def _placed(self, batch: LoadedBatch) -> dict[str, torch.Tensor]:
        return {name: self._place(array) for name, array in batch.features.items()}

    def _place(self, array: Any) -> torch.Tensor:
        writable = array if array.flags.writeable else array.copy()  # torch warns of, and could write into, others
        tensor = torch.from_numpy(writable)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)

    def read_sums(self) -> Sums:
        values, norms = self._sums.read(), self._update.norms.read()
        parts = dict(zip(PARTS, self._laps.take(), strict=True))  # after the device has done all of them
        waited = parts.pop(PARTS[ALLREDUCE]) + self._stopwatch.take("average") if self._is_distributed else 0.0
        gpu = memory_peak(self._device), gpu_use(self._device)
        sums = Sums(values, waited, self._skipped, *norms, parts, *gpu)
        self._skipped = 0
        return sums

    def take_part_times(self) -> Mapping[str, QuantileSketch]:
        sketches = self._laps.take_sketches()
        return {name: one for name, one in sketches.items() if self._is_distributed or "allreduce" not in name}

    def tell_parts(self, tell: SpanSink | None) -> None:
        self._laps.tell = tell

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows of a micro batch count.

    Attributes:
        weights: float32[n], 0 or 1; None where all n rows count, which spares the device some work.
        real: bool[n], those that count; None where all do.
    """

    weights: torch.Tensor | None
    real: torch.Tensor | None

    @classmethod
    def of(cls, weights: NDArray[np.float32], place: Callable[[Any], torch.Tensor]) -> "_Rows":
        if np.count_nonzero(weights) == len(weights):
            return _ALL_ROWS
        placed = place(weights)
        return cls(placed, placed > 0)


_ALL_ROWS = _Rows(None, None)


def _optimizer(task: Task, model: torch.nn.Module, lr: float, options: TrainingOptions) -> Any:
    return task.build_optimizer(model, lr) if options.optimizer is None else build_optimizer(model, lr, options)


def _generators_of(device: torch.device) -> list[torch.Generator]:
    """Those that a model on `device` may draw from; a model on a GPU may draw on the host too."""
    if device.type == "cpu":
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return [torch.default_generator, torch.cuda.default_generators[device.index]]
