"""What gradient buckets ask of a wire."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvdtrain.state import State

Handle = Any
"""Of a collective that runs in the background."""

StartSum = Callable[[torch.Tensor, str], Handle]
"""Begins an in-place sum of a flat tensor over ranks under a name."""

PendingReduction = Generator[Handle, Any, None]
"""Yields a handle whenever it must wait; is sent what waiting for it returned. At its end the bucket is reduced."""


@dataclass(frozen=True)
class GradBucket:
    """Gradients that travel together.

    Attributes:
        name: begins the names of its collectives; the same on every rank.
        flat: of shape [numbers], which the reduction changes in place.
        views: each parameter's name and gradient, consecutive parts of `flat` in any memory layout without gaps.
    """

    name: str
    flat: torch.Tensor
    views: list[tuple[str, torch.Tensor]]


class CommHook(Protocol):
    """A way of gradients to the other ranks.

    Attributes:
        loss_multiplier: what gradients come multiplied by, see `GradientSync`.
    """

    loss_multiplier: float

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        """Called once a bucket, at the start; what it returns begins a reduction in each update.

        A reduction begins in the backward pass, as soon as the bucket is full, and goes on after it. All ranks begin
        the same journeys, but not in the same order.
        """
        ...

    def rank_local_state(self) -> State:
        """As `GradientSync.rank_local_state`."""
        ...

    def load_rank_local_state(self, arrays: State) -> None:
        """As `GradientSync.load_rank_local_state`."""

    def state(self) -> State:
        """As `GradientSync.state`."""
        ...

    def load_state(self, state: State) -> None:
        """As `GradientSync.load_state`."""
