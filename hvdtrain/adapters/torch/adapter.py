"""The PyTorch adapter: one model on one device, gradients summed over ranks by Horovod."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from data_sharding import LoadedBatch
from hvdtrain.adapters.base import AdapterState
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.interface import Sums
from hvdtrain.adapters.torch import state
from hvdtrain.adapters.torch.build import build_model, callable_for, open_gradient_sync
from hvdtrain.adapters.torch.compiler_import import spare_compiler_import
from hvdtrain.adapters.torch.device import apply_settings, low_precision, own_device
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.optimizers import build_optimizer
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.adapters.torch.update import TorchWeightAverage, Update
from hvdtrain.algorithms.ema import NoAverage
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.algorithms.micro_batches import micro_batches, mix
from hvdtrain.comm.failure import peer_failures, waits_for_peers
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.stopwatch import Stopwatch
from hvdtrain.task.interface import Task, check_measures, require_trainable, sample_weights
from hvdtrain.topology import Topology


class TorchAdapter(AdapterState):
    """Implements `Adapter`; arguments as those of `open_adapter`."""

    _arrays = state
    _gradient_sync: GradientSync
    _update: Update

    def __init__(self, task: Task, topology: Topology, seed: int, lr: float, options: TrainingOptions) -> None:
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
        trained = [p for p in self.model.parameters() if p.requires_grad]
        loss_scale = LossScale() if options.precision == "fp16" else None
        self._update = Update(self.optimizer, trained, options.max_grad_norm, loss_scale)
        self._average = NoAverage() if options.ema_decay is None else TorchWeightAverage(self.model, options.ema_decay)
        self._sums: dict[str, torch.Tensor] = {}
        self._stopwatch, self._skipped = Stopwatch(), 0
        self._checked = False

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self.model.train()
        parts = micro_batches(batch, self._options.accumulate_steps)
        measured = [self._backward(part, step, number, number + 1 == len(parts)) for number, part in enumerate(parts)]
        with self._syncing():
            self._gradient_sync.finish()
        for group, factor in zip(self.optimizer.param_groups, self._lr_factors, strict=True):
            group["lr"] = lr * factor
        changed = self._update.step()
        with self._syncing():
            self._gradient_sync.after_update(step)
        self._average.update(step)
        self._gradient_sync.clear()
        self._skipped += not changed
        for totals in measured:
            self._add(totals)

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        with self._stopwatch.span("gradient_sync"), waits_for_peers():
            yield

    def _backward(self, part: LoadedBatch, step: int, number: int, last: bool) -> dict[str, torch.Tensor]:
        """Add to the gradients; returns the sums of this micro batch's measures."""
        # Random numbers are a function of (seed, rank, step, micro batch), so that a resumed run draws the same ones.
        for generator in self._generators:
            generator.manual_seed(mix(self._seed, self._rank, step, number))
        shares = self._place(sample_weights(part.weights, part.global_weight))
        self._gradient_sync.set_grad_sync(last)
        with peer_failures():  # SyncBatchNorm reduces its statistics in the forward pass
            measures, totals = self._measure(part)
            loss = (measures["loss"].float() * shares).sum() * (
                self._gradient_sync.loss_multiplier * self._update.scale
            )
            require_trainable(loss.requires_grad)
            loss.backward()  # type: ignore[no-untyped-call]
        return totals

    @torch.no_grad()
    def eval_step(self, batch: LoadedBatch) -> None:
        self.model.eval()
        self._add(self._measure(batch)[1])

    def _measure(self, batch: LoadedBatch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The task's measures a sample, and their sums over real samples."""
        features = {name: self._place(array) for name, array in batch.features.items()}
        real = self._place(batch.weights)
        rows = None if batch.weights.all() else real > 0
        with low_precision(self._options.precision, self._device), batch_mask(rows):
            measures = self._task.measure(self._forward, features)
        if not self._checked:
            check_measures(measures, len(batch.ids))
            self._checked = True
        totals = {name: (value.detach() * real).sum(dtype=torch.float64) for name, value in measures.items()}
        return measures, totals

    def _add(self, totals: dict[str, torch.Tensor]) -> None:
        for name, total in totals.items():
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def _place(self, array: Any) -> torch.Tensor:
        writable = array if array.flags.writeable else array.copy()  # torch warns of, and could write into, others
        return torch.from_numpy(writable).to(self._device, non_blocking=True)

    def read_sums(self) -> Sums:
        values = {name: float(value) for name, value in self._sums.items()}
        waited = self._stopwatch.take("gradient_sync") if self._is_distributed else 0.0
        sums = Sums(values, waited, self._skipped, *self._update.norms.read())
        self._sums, self._skipped = {}, 0
        return sums

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def _optimizer(task: Task, model: torch.nn.Module, lr: float, options: TrainingOptions) -> Any:
    return task.build_optimizer(model, lr) if options.optimizer is None else build_optimizer(model, lr, options)


def _generators_of(device: torch.device) -> list[torch.Generator]:
    """Those that a model on `device` may draw from; a model on a GPU may draw on the host too."""
    if device.type == "cpu":
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return [torch.default_generator, torch.cuda.default_generators[device.index]]
