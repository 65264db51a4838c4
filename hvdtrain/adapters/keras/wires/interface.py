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


class Stateless:
    """A wire that remembers nothing.

    Args:
        share_factor: what gradients come multiplied by.
    """

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
