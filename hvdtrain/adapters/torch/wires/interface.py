"""What gradient buckets ask of a wire."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvdtrain.adapters.interface import State

Handle = Any
"""Of a collective that runs in the background."""

StartSum = Callable[[torch.Tensor, str], Handle]
"""Begins an in-place sum of a flat tensor over ranks under a name."""

Journey = Generator[Handle, Any, None]
"""Yields a handle whenever it must wait; is sent what waiting for it returned. At its end the parcel is reduced."""


@dataclass(frozen=True)
class Parcel:
    """Gradients that travel together.

    Attributes:
        name: begins the names of its collectives; the same on every rank.
        flat: of shape [numbers], which the journey changes in place.
        views: each parameter's name and gradient, consecutive parts of `flat` in any memory layout without gaps.
    """

    name: str
    flat: torch.Tensor
    views: list[tuple[str, torch.Tensor]]


class Wire(Protocol):
    """A way of gradients to the other ranks.

    Attributes:
        share_factor: what gradients come multiplied by, see `Exchange`.
    """

    share_factor: float

    def open(self, parcel: Parcel) -> Callable[[], Journey]:
        """Called once a parcel, at the start; what it returns begins a journey in each update.

        A journey begins in the backward pass, as soon as the parcel is full, and goes on after it. All ranks begin
        the same journeys, but not in the same order.
        """
        ...

    def drifting(self) -> State:
        """As `Exchange.drifting`."""
        ...

    def load_drifting(self, arrays: State) -> None:
        """As `Exchange.load_drifting`."""

    def state(self) -> State:
        """As `Exchange.state`."""
        ...

    def load_state(self, state: State) -> None:
        """As `Exchange.load_state`."""
