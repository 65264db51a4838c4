"""Many tensors as one of shape [numbers], and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def flattened(values: Sequence[Any], dtype: tf.DType) -> Any:
    """All numbers in order, as `dtype`."""
    return tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in values], axis=0)


def cut(flat: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """The tensors of these shapes that `flat` consists of."""
    parts = tf.split(flat, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
