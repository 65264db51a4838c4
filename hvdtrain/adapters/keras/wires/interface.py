"""What the exchange of gradients asks of a wire."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from hvdtrain.adapters.interface import State
from hvdtrain.adapters.keras.buckets import Bucket


class Wire(Protocol):
    """A way of gradients to the other ranks.

    Attributes:
        share_factor: what gradients come multiplied by, see `Exchange`.
    """

    share_factor: float

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        """As which dtype gradients of `dtype` travel."""
        ...

    def reduce(self, bucket: Bucket) -> list[Any]:
        """The gradients after the exchange, in their dtypes and shapes. Called while the step is traced."""
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
