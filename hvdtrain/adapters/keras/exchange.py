"""How the workers' gradients, or weights, become one in Keras: what the adapter asks of it, and which way is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import tensorflow as tf

from hvdtrain.adapters.interface import State
from hvdtrain.adapters.keras.gradients import exchange_gradients
from hvdtrain.adapters.keras.waiting import Waiting
from hvdtrain.adapters.keras.wires.choice import open_wire
from hvdtrain.knobs import Knobs
from hvdtrain.topology import Topology


class Exchange(Protocol):
    """As torch's of that name.

    Attributes:
        share_factor: what each sample's share in the mean over the global batch is multiplied by, so that after the
            exchange the gradient is right.
    """

    share_factor: float

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """What the optimizer needs for each variable. Called while the step is traced; collective when it runs."""
        ...

    def after_update(self, step: int) -> None:
        """Update `step` (from 0) has changed the weights. Called between graphs. May be collective."""

    def waited(self) -> float:
        """Seconds that steps stood still for other ranks since the last call."""
        ...

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


def open_exchange(model: Any, optimizer: Any, topology: Topology, knobs: Knobs) -> Exchange:
    """The exchange that `knobs` ask for."""
    if knobs.sparse_gradients == "allgather":
        from hvdtrain.adapters.keras.sparse import open_sparse_gradients

        return open_sparse_gradients(topology)
    if not topology.is_distributed and knobs.compression != "powersgd":
        return Alone()
    if knobs.sync_every is not None:
        from hvdtrain.adapters.keras.local_sgd import open_local_sgd

        return open_local_sgd(model, optimizer, knobs.sync_every, in_sets=knobs.process_sets is not None)
    return SummedGradients(model.trainable_variables, knobs, alone=not topology.is_distributed)


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
    """One process: nothing to exchange, and dense gradients as with many ranks. It needs no Horovod."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        return [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]

    def waited(self) -> float:
        return 0.0


@final
class SummedGradients:
    """Each rank's gradient is its part of the global batch's, and their sum is the whole; or as the wire has it.

    Args:
        variables: all that are trained, in the order in which their gradients will come.
        knobs: which wire is taken.
        alone: one process, without Horovod, takes the wire too.
    """

    def __init__(
        self,
        variables: Sequence[Any] = (),
        knobs: Knobs = Knobs(),  # noqa: B008  frozen
        alone: bool = False,
    ) -> None:
        self._wire = open_wire(variables, knobs, alone)
        self.share_factor = self._wire.share_factor
        self._waiting = Waiting()

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._waiting.over(gradients, lambda: exchange_gradients(gradients, variables, self._wire))

    def after_update(self, step: int) -> None:
        pass

    def settle(self) -> None:
        pass

    def waited(self) -> float:
        return self._waiting.read()

    def drifting(self) -> State:
        return self._wire.drifting()

    def load_drifting(self, arrays: State) -> None:
        self._wire.load_drifting(arrays)

    def state(self) -> State:
        return self._wire.state()

    def load_state(self, state: State) -> None:
        self._wire.load_state(state)
