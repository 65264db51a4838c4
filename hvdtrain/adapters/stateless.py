"""For ways of exchanging gradients, and for wires, in which no rank has anything of its own."""

from __future__ import annotations

from hvdtrain.adapters.interface import State


class Stateless:
    """The half of a framework's `Wire` that is about state: there is none.

    Args:
        share_factor: what gradients come multiplied by, see `Exchange`.
    """

    share_factor = 1.0

    def __init__(self, share_factor: float = 1.0) -> None:
        self.share_factor = share_factor

    def drifting(self) -> State:
        return {}

    def load_drifting(self, arrays: State) -> None:
        pass

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass


class StatelessExchange(Stateless):
    """That half of a framework's `Exchange`."""

    def after_update(self, step: int) -> None:
        pass

    def settle(self) -> None:
        pass
