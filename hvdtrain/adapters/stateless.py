"""For ways of exchanging gradients in which no rank has anything of its own."""

from __future__ import annotations

from hvdtrain.adapters.interface import State


class Stateless:
    """The half of a framework's `Exchange` that is about state: there is none."""

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
