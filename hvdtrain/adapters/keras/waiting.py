"""How long a step stands still for other ranks, measured inside graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf


@final
class Waiting:
    """Seconds from when a collective's inputs were all there until its results were."""

    def __init__(self) -> None:
        self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def over(self, inputs: Sequence[Any], collective: Callable[[], list[Any]]) -> list[Any]:
        """What `collective` returns. Called while a step is traced; None stands for nothing on both sides."""
        with tf.control_dependencies([i for i in inputs if i is not None]):
            ready = tf.timestamp()
        results = collective()
        with tf.control_dependencies([r for r in results if r is not None]):
            self._seconds.assign_add(tf.timestamp() - ready)
        return results

    def read(self) -> float:
        """The seconds since the last call."""
        seconds = float(self._seconds.numpy())
        self._seconds.assign(0.0)
        return seconds
