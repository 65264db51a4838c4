"""Gradients as they are, or as float16: one named grouped allreduce a bucket."""

from __future__ import annotations

from typing import Any, Literal, final

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.adapters.keras.buckets import Bucket
from hvdtrain.adapters.stateless import Stateless


@final
class Grouped(Stateless):
    """Implements `CommHook`.

    Args:
        op: of the ranks' gradients.
        loss_multiplier: see `CommHook`.
    """

    def __init__(self, op: Literal["average", "sum"], loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._op = horovod.Average if op == "average" else horovod.Sum

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        return tf.float32 if dtype == tf.bfloat16 else dtype  # Horovod 0.28.1 has no bfloat16 on the wire

    def reduce(self, bucket: Bucket) -> list[Any]:
        return _reduced(bucket, self._op, 1.0, 1.0)


@final
class Float16(Stateless):
    """Implements `CommHook`; overflow and underflow are as in torch's `Float16Sum`.

    Args:
        before: what each rank's gradient is multiplied by to be its part of a mean, which is what travels.
        after: what the sum of these is multiplied by.
        loss_multiplier: see `CommHook`.
    """

    def __init__(self, before: float, after: float, loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._before, self._after = before, after

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        if dtype == tf.bfloat16:
            return tf.float32
        return tf.float16 if dtype in (tf.float32, tf.float64) else dtype

    def reduce(self, bucket: Bucket) -> list[Any]:
        return _reduced(bucket, horovod.Sum, self._before, self._after)


def _reduced(bucket: Bucket, op: Any, before: float, after: float) -> list[Any]:
    sent = [tf.cast(_times(gradient.value, before), bucket.dtype) for gradient in bucket.gradients]
    # TensorFlow prefixes node names with the function that they were inlined from.
    received = horovod.grouped_allreduce(sent, op=op, name=bucket.name, ignore_name_scope=True)
    return [
        _times(tf.cast(value, gradient.value.dtype), after)
        for value, gradient in zip(received, bucket.gradients, strict=True)
    ]


def _times(value: Any, factor: float) -> Any:
    return value if factor == 1 else value * tf.cast(factor, value.dtype)
