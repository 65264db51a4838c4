"""What the exchange of gradients asks of a wire."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from hvdtrain.adapters.keras.buckets import Bucket
from hvdtrain.state import State


class CommHook(Protocol):
    """A way of gradients to the other ranks.

    Attributes:
        loss_multiplier: what gradients come multiplied by, see `GradientSync`.
    """

    loss_multiplier: float

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        """As which dtype gradients of `dtype` travel."""
        ...

    def reduce(self, bucket: Bucket) -> list[Any]:
        """The gradients after the exchange, in their dtypes and shapes. Called while the step is traced."""
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
