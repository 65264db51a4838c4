"""Gradients of several backward passes added up on their rank, then reduced and applied once."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.errors import UsageError


class SummedPasses:
    """Calls a function with the sum or the mean of every `passes` lists of gradients.

    Each rank counts its passes alone, and all ranks make the same number of them: so all reduce in the same pass.

    Args:
        passes: how many backward passes make one update.
        average: whether the sum is divided by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._done: Any = None
        self._sums: list[Any] = []

    def add(self, gradients: Sequence[Any], apply: Callable[[list[Any]], object]) -> None:
        """Add dense gradients (None for None) and, in the last of the passes, `apply` what has come together."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if self._done is None:
            with tf.init_scope():
                self._done = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvdtrain_passes")
                self._sums = [_zeros(gradients[i]) for i in there]
        for i, total in zip(there, self._sums, strict=True):
            total.assign_add(gradients[i])
        done = self._done.assign_add(1)

        def update() -> Any:
            whole: list[Any] = [None] * len(gradients)
            for i, total in zip(there, self._sums, strict=True):
                whole[i] = total / self._passes if self._average else tf.identity(total)
            apply(whole)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(done % self._passes, 0), update, lambda: tf.constant(False))


def _zeros(gradient: Any) -> Any:
    return tf.Variable(tf.zeros(gradient.shape, gradient.dtype), trainable=False, name="hvdtrain_summed_gradient")


class LocalGradientAggregationHelper:
    """Refused: it serves TensorFlow 1's optimizers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 (Horovod's arguments)
        raise UsageError(
            "hvd.LocalGradientAggregationHelper adds up gradients for TensorFlow 1's optimizers.",
            "Keras 3's optimizers do not call it.",
            "use hvd.DistributedOptimizer(optimizer, backward_passes_per_step=...).",
        )
