"""How the workers' gradients, or weights, become one in Keras: what the adapter asks of it, and which way is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hvdtrain.adapters.keras.summed_gradients import NoSync, SummedGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.state import State
from hvdtrain.topology import Topology


class GradientSync(Protocol):
    """As torch's of that name.

    Attributes:
        loss_multiplier: what each sample's share in the mean over the global batch is multiplied by, so that after the
            exchange the gradient is right.
    """

    loss_multiplier: float

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """What the optimizer needs for each variable. Called while the step is traced; collective when it runs."""
        ...

    def after_update(self, step: int) -> None:
        """Update `step` (from 0) has changed the weights. Called between graphs. May be collective."""

    def waited(self) -> float:
        """Seconds that steps stood still for other ranks since the last call."""
        ...

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


def open_gradient_sync(model: Any, optimizer: Any, topology: Topology, options: TrainingOptions) -> GradientSync:
    """The exchange that `options` ask for."""
    if options.sparse_gradients == "allgather":
        from hvdtrain.adapters.keras.sparse import open_sparse_gradients

        return open_sparse_gradients(topology)
    if not topology.is_distributed and options.compression != "powersgd":
        return NoSync()
    if options.sync_every is not None:
        from hvdtrain.adapters.keras.local_sgd import open_local_sgd

        return open_local_sgd(model, optimizer, options.sync_every, in_sets=options.process_sets is not None)
    return SummedGradients(model.trainable_variables, options, alone=not topology.is_distributed)
