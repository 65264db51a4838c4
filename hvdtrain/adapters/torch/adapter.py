"""The PyTorch adapter: one model on one device, gradients summed over ranks by Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import State, Sums
from hvdtrain.adapters.seeds import mix
from hvdtrain.adapters.torch.buckets import GradientBuckets
from hvdtrain.adapters.torch.device import own_device
from hvdtrain.adapters.torch.state import (
    drifting_buffers,
    load_drifting,
    load_state,
    read_state,
    require_own_parameters,
)
from hvdtrain.comm.failure import peer_failures
from hvdtrain.task import Task, check_measures, sample_weights
from hvdtrain.topology import Topology


@final
class TorchAdapter:
    """Implements `Adapter`.

    Args:
        task: the user's task; its model and optimizer are built here.
        topology: this process among the others.
        seed: of initial weights and of all random numbers in the model (dropout).
        lr: the schedule's peak, which the task's optimizer is built with.
    """

    def __init__(self, task: Task, topology: Topology, seed: int, lr: float) -> None:
        self._task = task
        self._device = own_device()
        self._seed, self._rank = seed, topology.rank
        torch.manual_seed(seed)
        self._generators = _generators_of(self._device)
        self.model: torch.nn.Module = task.build_model().to(self._device)
        self.optimizer: torch.optim.Optimizer = task.build_optimizer(self.model, lr)
        require_own_parameters(self.model, self.optimizer)
        # A task may give its groups learning rates of their own; they keep their proportion to the schedule's.
        self._lr_factors = [group["lr"] / lr for group in self.optimizer.param_groups]
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        self._buckets = _buckets(self.model) if topology.is_distributed else None
        self._sums: dict[str, torch.Tensor] = {}
        self._allreduce_seconds = 0.0
        self._checked = False

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        self.model.train()
        # Random numbers are a function of (seed, rank, step), so that a resumed run draws the same ones.
        for generator in self._generators:
            generator.manual_seed(mix(self._seed, self._rank, step))
        loss = self._measure(batch)
        with peer_failures():
            loss.backward()  # type: ignore[no-untyped-call]
            if self._buckets is not None:
                self._allreduce_seconds += self._buckets.finish()
        if self._buckets is None:
            _as_with_many_ranks(self._trainable)
        for group, factor in zip(self.optimizer.param_groups, self._lr_factors, strict=True):
            group["lr"] = lr * factor
        self.optimizer.step()
        if self._buckets is not None:
            self._buckets.clear()
        else:
            self.optimizer.zero_grad()

    @torch.no_grad()
    def eval_step(self, batch: LoadedBatch) -> None:
        self.model.eval()
        self._measure(batch)

    def _measure(self, batch: LoadedBatch) -> torch.Tensor:
        """Add up the weighted measures; returns this rank's part of the global batch's mean loss."""
        features = {name: self._place(array) for name, array in batch.features.items()}
        measures = self._task.measure(self.model, features)
        if not self._checked:
            check_measures(measures, len(batch.ids))
            self._checked = True
        real = self._place(batch.weights)
        for name, value in measures.items():
            total = (value.detach() * real).sum(dtype=torch.float64)
            self._sums[name] = self._sums[name] + total if name in self._sums else total
        shares = self._place(sample_weights(batch.weights, batch.global_weight))
        loss: torch.Tensor = (measures["loss"] * shares).sum()
        return loss

    def _place(self, array: Any) -> torch.Tensor:
        writable = array if array.flags.writeable else array.copy()  # torch warns of, and could write into, others
        return torch.from_numpy(writable).to(self._device, non_blocking=True)

    def read_sums(self) -> Sums:
        sums = Sums({name: float(value) for name, value in self._sums.items()}, self._allreduce_seconds)
        self._sums, self._allreduce_seconds = {}, 0.0
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
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def _as_with_many_ranks(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Dense gradients for all parameters, so that optimizers do the same in one process as in two.

    They skip a parameter without a gradient, and so would not decay its weights; sparse ones have rules of their own.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def _generators_of(device: torch.device) -> list[torch.Generator]:
    """Those that a model on `device` may draw from; a model on a GPU may draw on the host too."""
    if device.type == "cpu":
        return [torch.default_generator]
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return [torch.default_generator, torch.cuda.default_generators[device.index]]


def _buckets(model: torch.nn.Module) -> GradientBuckets:
    import horovod.torch as hvd

    def start_sum(tensor: torch.Tensor, name: str) -> Any:
        return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)

    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return GradientBuckets(trainable, start_sum, hvd.synchronize)
