"""Gradients of all ranks added up: of one rank there is nothing to add."""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from hvdtrain.adapters.interface import State
from hvdtrain.adapters.stateless import StatelessExchange
from hvdtrain.adapters.torch.buckets import GradientBuckets
from hvdtrain.adapters.torch.wires.choice import open_wire
from hvdtrain.knobs import Knobs


@final
class Alone(StatelessExchange):
    """One process: nothing to exchange, and dense gradients for all parameters as with many ranks.

    Optimizers skip a parameter without a gradient, and so would not decay its weights; sparse ones have rules of their
    own. Those in `without` are left to others.
    """

    def __init__(self, model: nn.Module, without: frozenset[nn.Parameter] = frozenset()) -> None:
        self._trainable = [p for p in model.parameters() if p.requires_grad and p not in without]

    def expect(self, last: bool) -> None:
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
        knobs: which wire is taken.
        alone: one process, without Horovod, takes the wire too.
    """

    def __init__(
        self,
        model: nn.Module,
        without: frozenset[nn.Parameter] = frozenset(),
        knobs: Knobs = Knobs(),  # noqa: B008  frozen
        alone: bool = False,
    ) -> None:
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p not in without]
        self._wire, wait = open_wire(trainable, knobs, alone)
        self._buckets = GradientBuckets(trainable, self._wire, wait)
        self.share_factor = self._wire.share_factor

    def expect(self, last: bool) -> None:
        self._buckets.hold(not last)

    def finish(self) -> float:
        return self._buckets.finish()

    def after_update(self, step: int) -> None:
        pass

    def settle(self) -> None:
        pass

    def clear(self) -> None:
        self._buckets.clear()

    def drifting(self) -> State:
        return self._wire.drifting()

    def load_drifting(self, arrays: State) -> None:
        self._wire.load_drifting(arrays)

    def state(self) -> State:
        return self._wire.state()

    def load_state(self, state: State) -> None:
        self._wire.load_state(state)
