"""How the workers' gradients, or weights, become one: what the adapter asks of it, and which way is taken."""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import nn

from hvdtrain.adapters.interface import State
from hvdtrain.adapters.torch.buckets import GradientBuckets
from hvdtrain.adapters.torch.wires.choice import open_wire
from hvdtrain.knobs import Knobs
from hvdtrain.topology import Topology


class Exchange(Protocol):
    """Gradients of one rank against those of the others.

    The order in an update: for each micro batch `expect(last)` and a backward pass; `finish`; the optimizer's step;
    `after_update`; `clear`.

    Attributes:
        share_factor: what each sample's share in the mean over the global batch is multiplied by, so that after the
            exchange the gradient is right.
    """

    share_factor: float

    def expect(self, last: bool) -> None:
        """A backward pass follows; `last`: no other one adds to the gradients of this update."""

    def finish(self) -> float:
        """Every parameter's `.grad` is what the optimizer needs. Collective; returns the seconds of waiting."""
        ...

    def after_update(self, step: int) -> None:
        """Update `step` (from 0) has changed the weights. May be collective."""

    def clear(self) -> None:
        """Forget the gradients."""

    def settle(self) -> None:
        """Make equal, on the device, weights that ranks have updated each by gradients of its own. Collective."""

    def drifting(self) -> State:
        """Float arrays that differ between ranks now, whose mean over ranks may stand for all (see `Adapter`)."""
        ...

    def load_drifting(self, arrays: State) -> None:
        """Put back what `drifting` returned, averaged."""

    def state(self) -> State:
        """What a resumed run needs, equal on all ranks after `load_drifting`; names begin with "exchange/"."""
        ...

    def load_state(self, state: State) -> None:
        """Put back what `state` returned, at this world size or another."""


def open_exchange(model: nn.Module, optimizer: torch.optim.Optimizer, topology: Topology, knobs: Knobs) -> Exchange:
    """The exchange that `knobs` ask for."""
    if knobs.sparse_gradients == "allgather":
        from hvdtrain.adapters.torch.sparse import open_sparse_gradients

        return open_sparse_gradients(model, optimizer, topology)
    if not topology.is_distributed and knobs.compression != "powersgd":
        return Alone(model)
    if knobs.sync_every is not None:
        from hvdtrain.adapters.torch.local_sgd import open_local_sgd

        return open_local_sgd(model, optimizer, knobs.sync_every, in_sets=knobs.process_sets is not None)
    return SummedGradients(model, knobs=knobs, alone=not topology.is_distributed)


class Stateless:
    """No rank has anything of its own."""

    share_factor = 1.0

    def after_update(self, step: int) -> None:
        pass

    def settle(self) -> None:
        pass

    def drifting(self) -> State:
        return {}

    def load_drifting(self, arrays: State) -> None:
        pass

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass


@final
class Alone(Stateless):
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
