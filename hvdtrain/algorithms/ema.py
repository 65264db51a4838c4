"""The exponential moving average of the weights, once for all frameworks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from numpy.typing import NDArray

from hvdtrain.named_arrays import NO_STATE, State, require_fit

PREFIX = "ema/"
"""Begins the names of averages in a checkpoint."""


def kept_share(decay: float, step: Any, smaller_of: Callable[[Any, Any], Any] = min) -> Any:
    """How much of the average update `step` keeps, counted from 0: min(decay, (1 + step) / (10 + step)).

    While few updates have been made, the average forgets quickly what the weights were at the start, as
    tf.train.ExponentialMovingAverage(decay, num_updates) does.

    Args: `decay`: the share that an update keeps in the long run, 0 to below 1.
    """
    return smaller_of((1 + step) / (10 + step), decay)


class WeightAverage(ABC):
    """Averages of all trainable weights; other arrays, such as BatchNorm's statistics, stay the model's.

    Call `update` after each optimizer step. Weights that several layers share have one average.

    Args:
        decay: the share of an average that an update keeps, 0 to below 1; at first less, see `kept_share`.
        averages: copies of these, on the same devices.
        frozen: weights that may be trained later.
    """

    _assign: Callable[[Any, Any], None]  # puts values of a weight, an average, or an array, which may be read-only
    _to_host: Callable[[Any, NDArray[Any] | None], NDArray[Any]]  # a copy: in the memory of the array, where it fits

    def __init__(
        self,
        decay: float,
        weights: Mapping[str, Any],
        averages: Mapping[str, Any],
        frozen: Mapping[str, Any] = NO_STATE,
    ) -> None:
        self._decay, self._weights, self._averages, self._frozen = decay, dict(weights), dict(averages), dict(frozen)

    def include(self, weights: Mapping[str, Any]) -> None:
        """Average these too, which have not changed so far."""
        for name, weight in weights.items():
            self._frozen.pop(name, None)
            if name not in self._weights:
                self._weights[name], self._averages[name] = weight, self._copied(weight)

    @abstractmethod
    def update(self, step: Any) -> None:
        """Move the averages towards the weights that update `step`, counted from 0, has left. Does not wait."""

    @abstractmethod
    def _copied(self, weight: Any) -> Any:
        """A copy on the same device."""

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within, the model has the averages for its weights; afterwards its own again, bit by bit, in any case."""
        kept = {name: self._copied(weight) for name, weight in self._weights.items()}
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(kept)

    def _put(self, values: Mapping[str, Any]) -> None:
        for name, weight in self._weights.items():
            self._assign(weight, values[name])

    def state(self, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
        """Copies in host memory, as "ema/NAME" with the weights' names; that of `earlier` is used again."""
        names = {PREFIX + name: average for name, average in self._averages.items()}
        return {name: self._to_host(average, earlier.get(name)) for name, average in names.items()}

    def load_state(self, state: State) -> None:
        """Put back what `state` returned; without it, start from the weights, which must be loaded already.

        Raises `UsageError`: parameters are missing, or have other names or shapes.
        """
        saved = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
        if saved:
            self.include({name: weight for name, weight in self._frozen.items() if name in saved})
            shapes = {name: tuple(weight.shape) for name, weight in self._weights.items()}
            require_fit(saved, shapes, "The saved averages of the weights do not fit the model.")
        for name, average in self._averages.items():
            self._assign(average, saved[name] if saved else self._weights[name])


class NoAverage:
    """Used instead of a framework's `WeightAverage` if there is none."""

    def update(self, step: Any) -> None:
        """Nothing to do."""
        del step  # TensorFlow cannot trace a method without a statement

    def include(self, weights: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def swapped(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:  # noqa: ARG002
        """No arrays."""
        return {}

    def load_state(self, state: State) -> None:
        """Averages in a checkpoint are not used."""
