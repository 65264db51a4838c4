"""The exponential moving average of a Keras model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.algorithms.ema import PREFIX, kept_share, saved_averages


@final
class WeightAverage:
    """Averages of all trainable variables; the others, such as BatchNorm's statistics, stay the model's.

    Build it before the training step is traced, and call `update` in that step, after the optimizer.

    Args:
        model: built, with the weights that the averages start from.
        decay: the share of an average that stays at an update, 0 to below 1; at first less, see `kept_share`.
    """

    def __init__(self, model: keras.Model, decay: float) -> None:
        self._decay = decay
        self._weights = {variable.path: variable for variable in model.trainable_variables}
        self._averages = {p: tf.Variable(v.value, trainable=False) for p, v in self._weights.items()}

    def update(self, step: Any) -> None:
        """Draw the averages towards the weights that update `step`, counted from 0, has left. May be traced.

        Args:
            step: a number, or an integer scalar, so that a traced step serves all updates.
        """
        drawn = 1 - kept_share(self._decay, tf.cast(step, tf.float64), tf.minimum)
        for path, average in self._averages.items():
            average.assign_add((self._weights[path].value - average) * tf.cast(drawn, average.dtype))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within, the model has the averages for its weights; afterwards its own again, bit by bit, come what may."""
        kept = {path: tf.identity(variable.value) for path, variable in self._weights.items()}
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(kept)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies in host memory, as "ema/PATH" with the variables' paths."""
        return {PREFIX + path: np.array(average.numpy()) for path, average in self._averages.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned; without it, start from the weights, which must be there already.

        Args:
            state: named arrays, also of other things.

        Raises:
            UsageError: the averages are another model's.
        """
        shapes = {path: tuple(variable.shape) for path, variable in self._weights.items()}
        saved = saved_averages(state, shapes)
        for path, average in self._averages.items():
            average.assign(self._weights[path].value if saved is None else saved[path])

    def _put(self, values: Mapping[str, Any]) -> None:
        for path, variable in self._weights.items():
            variable.assign(values[path])
