"""Gradients of all ranks added up: of one rank there is nothing to add."""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from hvdtrain.adapters.stateless import StatelessGradientSync
from hvdtrain.adapters.torch.buckets import GradientBuckets
from hvdtrain.adapters.torch.comm_hooks.choice import open_comm_hook
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.state import State


@final
class NoSync(StatelessGradientSync):
    """One process: nothing to exchange, and dense gradients for all parameters as with many ranks.

    Optimizers skip a parameter without a gradient, and so would not decay its weights; sparse ones have rules of their
    own. Those in `without` are left to others.
    """

    def __init__(self, model: nn.Module, without: frozenset[nn.Parameter] = frozenset()) -> None:
        self._trainable = [p for p in model.parameters() if p.requires_grad and p not in without]

    def set_grad_sync(self, last: bool) -> None:
        pass

    def finish(self) -> float:
        for parameter in self._trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        return 0.0

    def clear(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None


@final
class SummedGradients:
    """Each rank's gradient is its part of the global batch's, and their sum is the whole; or as the wire has it.

    Args:
        model: whose gradients these are.
        without: parameters that are left to others.
        options: which wire is taken.
        alone: one process, without Horovod, takes the wire too.
    """

    def __init__(
        self,
        model: nn.Module,
        without: frozenset[nn.Parameter] = frozenset(),
        options: TrainingOptions = TrainingOptions(),  # noqa: B008  frozen
        alone: bool = False,
    ) -> None:
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p not in without]
        self._wire, wait = open_comm_hook(trainable, options, alone)
        self._buckets = GradientBuckets(trainable, self._wire, wait)
        self.loss_multiplier = self._wire.loss_multiplier

    def set_grad_sync(self, last: bool) -> None:
        self._buckets.hold(not last)

    def finish(self) -> float:
        return self._buckets.finish()

    def after_update(self, step: int) -> None:
        pass

    def average_weights(self) -> None:
        pass

    def clear(self) -> None:
        self._buckets.clear()

    def rank_local_state(self) -> State:
        return self._wire.rank_local_state()

    def load_rank_local_state(self, arrays: State) -> None:
        self._wire.load_rank_local_state(arrays)

    def state(self) -> State:
        return self._wire.state()

    def load_state(self, state: State) -> None:
        self._wire.load_state(state)
