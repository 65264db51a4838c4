"""Gradients combined by Adasum, variable by variable (Maleki et al. 2020, arXiv:2006.02924)."""

from __future__ import annotations

from typing import Any, final

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.adapters.keras.buckets import Bucket
from hvdtrain.adapters.stateless import Stateless


@final
class Adasum(Stateless):
    """Implements `CommHook`; the rule is told at torch's wire of that name."""

    def __init__(self) -> None:
        super().__init__(loss_multiplier=horovod.size())

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        return tf.float32 if dtype == tf.bfloat16 else dtype

    def reduce(self, bucket: Bucket) -> list[Any]:
        # One by one: horovod.tensorflow 0.28.1's grouped_allreduce has a variable unbound where the op is Adasum.
        return [
            tf.cast(self._combined(tf.cast(gradient.value, bucket.dtype), f"{bucket.name}_{i}"), gradient.value.dtype)
            for i, gradient in enumerate(bucket.gradients)
        ]

    def _combined(self, value: Any, name: str) -> Any:
        return horovod.allreduce(value, op=horovod.Adasum, name=name, ignore_name_scope=True)
