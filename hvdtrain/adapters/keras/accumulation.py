"""Gradients of several micro batches, added up between graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf


@final
class GradientSum:
    """One float variable a trainable variable. Called while steps are traced.

    Args:
        variables: the trainable ones, whose gradients are summed.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._sums = [tf.Variable(tf.zeros_like(v.value), trainable=False) for v in variables]

    def add(self, gradients: Sequence[Any]) -> None:
        """Add a micro batch's gradients; None is nothing."""
        for total, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))

    def take(self, gradients: Sequence[Any]) -> list[Any]:
        """The sum with the last micro batch's gradients, and begin again. None stays None: it is so in all of them."""
        sums = [
            None if gradient is None else total + tf.convert_to_tensor(gradient)
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]
        with tf.control_dependencies([s for s in sums if s is not None]):
            for total in self._sums:
                total.assign(tf.zeros_like(total))
        return sums
