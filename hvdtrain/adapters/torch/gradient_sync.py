"""How the workers' gradients, or weights, become one: what the adapter asks of it, and which way is taken."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from hvdtrain.adapters.torch.summed_gradients import NoSync, SummedGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.state import State
from hvdtrain.topology import Topology


class GradientSync(Protocol):
    """Gradients of one rank against those of the others.

    The order of an update: for each micro batch `set_grad_sync(last)` and a backward pass; `finish`; the
    optimizer's step; `after_update`; `clear`.

    Attributes:
        loss_multiplier: what each sample's share in the mean over the global batch is multiplied by, so that after the
            exchange the gradient is right.
    """

    loss_multiplier: float

    def set_grad_sync(self, last: bool) -> None:
        """A backward pass follows; `last`: no other one adds to the gradients of this update."""

    def finish(self) -> float:
        """Every parameter's `.grad` is what the optimizer needs. Collective; returns the seconds of waiting."""
        ...

    def after_update(self, step: int) -> None:
        """Update `step` (from 0) has changed the weights. May be collective."""

    def clear(self) -> None:
        """Forget the gradients."""

    def average_weights(self) -> None:
        """Make equal, on the device, weights that ranks have updated each by gradients of its own. Collective."""

    def rank_local_state(self) -> State:
        """Float arrays that differ between ranks now, whose mean over ranks may stand for all (see `Adapter`)."""
        ...

    def load_rank_local_state(self, arrays: State) -> None:
        """Put back what `rank_local_state` returned, averaged."""

    def state(self) -> State:
        """What a resumed run needs, equal on all ranks after `load_rank_local_state`; names begin with "exchange/"."""
        ...

    def load_state(self, state: State) -> None:
        """Put back what `state` returned, at this world size or another."""


def open_gradient_sync(
    model: nn.Module, optimizer: torch.optim.Optimizer, topology: Topology, options: TrainingOptions
) -> GradientSync:
    """The exchange that `options` ask for."""
    if options.sparse_gradients == "allgather":
        from hvdtrain.adapters.torch.sparse import open_sparse_gradients

        return open_sparse_gradients(model, optimizer, topology)
    if not topology.is_distributed and options.compression != "powersgd":
        return NoSync(model)
    if options.sync_every is not None:
        from hvdtrain.adapters.torch.local_sgd import open_local_sgd

        return open_local_sgd(model, optimizer, options.sync_every, in_sets=options.process_sets is not None)
    return SummedGradients(model, options=options, alone=not topology.is_distributed)
