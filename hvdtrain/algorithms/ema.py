"""The exponential moving average of the weights, in no framework's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from numpy.typing import NDArray

from hvdtrain.state import require_fit

PREFIX = "ema/"
"""Begins the names of averages in a checkpoint."""


def kept_share(decay: float, step: Any, smaller_of: Callable[[Any, Any], Any] = min) -> Any:
    """How much of the average stays at update `step`, counted from 0: min(decay, (1 + step) / (10 + step)).

    While few updates have been made, the average forgets quickly what the weights were at the start, as
    tf.train.ExponentialMovingAverage(decay, num_updates) does.

    Args:
        decay: the share that stays in the long run, 0 to below 1.
        step: a number, or a float scalar of a framework.
        smaller_of: the minimum of two such.
    """
    return smaller_of((1 + step) / (10 + step), decay)


def saved_averages(
    state: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Any]] | None:
    """The averages in a checkpoint's arrays, by the parameters' names; None: it was written without.

    Args:
        state: named arrays, of which those of other names than `PREFIX` are left alone.
        shapes: of all trainable parameters.

    Raises:
        UsageError: parameters are missing, or have other names or shapes.
    """
    found = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
    if not found:
        return None
    require_fit(found, shapes, "The saved averages of the weights do not fit the model.")
    return found


@final
class NoAverage:
    """In the place of a framework's WeightAverage where none is kept."""

    def update(self, step: Any) -> None:
        """Nothing to do."""
        del step  # TensorFlow cannot trace a method without a statement

    def swapped(self) -> AbstractContextManager[None]:
        """The model as it is."""
        return nullcontext()

    def state(self) -> dict[str, NDArray[Any]]:
        """No arrays."""
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Averages in a checkpoint are of no use."""
