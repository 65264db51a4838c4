"""Gradients of several backward passes added up on their rank, then reduced and applied once."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.keras_variables import key_of


class SummedPasses:
    """Calls a function with the sum or the mean of every `passes` lists of gradients of the same variables.

    Each rank counts its passes alone, and all ranks make the same number of them: so all reduce in the same pass.

    Args:
        passes: how many backward passes make one update.
        average: whether the sum is divided by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._groups: dict[frozenset[Any], _Sums] = {}

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any]], object]) -> None:
        """Add dense gradients (None for None) of these variables and, in the last of their passes, `apply` what has
        come together."""
        keys = [key_of(variable) for variable in variables]
        together = frozenset(keys)
        if together not in self._groups:
            self._groups[together] = _Sums()
        group = self._groups[together]
        totals = [group.total(key, gradient) for key, gradient in zip(keys, gradients, strict=True)]
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.assign_add(gradient)
        done = group.done.assign_add(1)

        def update() -> Any:
            share = self._passes if self._average else 1
            apply([None if total is None else total / tf.cast(share, total.dtype) for total in totals])
            for total in totals:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(done % self._passes, 0), update, lambda: tf.constant(False))


class _Sums:
    """Of the variables that are given together: a counter of passes, and a sum for each that has had a gradient."""

    def __init__(self) -> None:
        with tf.init_scope():
            self.done = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvdtrain_passes")
        self._totals: dict[Any, Any] = {}

    def total(self, key: Any, gradient: Any) -> Any:
        """None where no pass has had a gradient so far."""
        if key not in self._totals and gradient is not None:
            with tf.init_scope():
                zeros = tf.zeros(gradient.shape, gradient.dtype)
                self._totals[key] = tf.Variable(zeros, trainable=False, name="hvdtrain_summed_gradient")
        return self._totals.get(key)


class LocalGradientAggregationHelper:
    """Refused: it serves TensorFlow 1's optimizers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 (Horovod's arguments)
        raise UsageError(
            "hvd.LocalGradientAggregationHelper adds up gradients for TensorFlow 1's optimizers.",
            "Keras 3's optimizers do not call it.",
            "use hvd.DistributedOptimizer(optimizer, backward_passes_per_step=...).",
        )
