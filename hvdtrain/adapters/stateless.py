"""For ways of exchanging gradients, and for wires, in which no rank has anything of its own."""

from __future__ import annotations

from hvdtrain.state import State


class Stateless:
    """The half of a framework's `CommHook` that is about state: there is none.

    Args:
        loss_multiplier: what gradients come multiplied by, see `GradientSync`.
    """

    loss_multiplier = 1.0

    def __init__(self, loss_multiplier: float = 1.0) -> None:
        self.loss_multiplier = loss_multiplier

    def rank_local_state(self) -> State:
        return {}

    def load_rank_local_state(self, arrays: State) -> None:
        pass

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass


class StatelessGradientSync(Stateless):
    """That half of a framework's `GradientSync`."""

    def after_update(self, step: int) -> None:
        pass

    def average_weights(self) -> None:
        pass
