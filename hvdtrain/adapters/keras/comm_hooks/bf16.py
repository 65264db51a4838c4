"""Gradients sent as bfloat16; what travels, and why so, is told at torch's wire of that name."""

from __future__ import annotations

from typing import Any, final

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.adapters.keras.buckets import Bucket
from hvdtrain.adapters.keras.comm_hooks.flat import cut, flattened
from hvdtrain.adapters.keras.comm_hooks.grouped import Grouped
from hvdtrain.adapters.stateless import Stateless


@final
class BFloat16(Stateless):
    """Implements `CommHook`. All ranks end with the same bits: each number was added up in one place.

    Args:
        average: bring home the mean of the ranks' gradients instead of their sum.
        loss_multiplier: see `CommHook`.
    """

    def __init__(self, average: bool, loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._factor = 1 / horovod.size() if average else 1.0
        self._as_they_are = Grouped("average" if average else "sum")

    def travels_as(self, dtype: tf.DType) -> tf.DType:
        return dtype if dtype == tf.float16 else tf.bfloat16

    def reduce(self, bucket: Bucket) -> list[Any]:
        if bucket.dtype == tf.float16:
            return self._as_they_are.reduce(bucket)
        values = [gradient.value for gradient in bucket.gradients]
        reduced = self._reduce_flat(flattened(values, tf.bfloat16), bucket.name)
        parts = cut(reduced, [gradient.shape for gradient in bucket.gradients])
        return [tf.cast(part, value.dtype) for part, value in zip(parts, values, strict=True)]

    def _reduce_flat(self, flat: Any, name: str) -> Any:
        numbers, ranks = flat.shape[0], horovod.size()
        part = -(-numbers // ranks)
        sent = tf.pad(flat, [[0, ranks * part - numbers]])
        received = horovod.alltoall(_bits(sent), name=f"{name}_parts", ignore_name_scope=True)
        own = tf.reshape(tf.bitcast(received, tf.bfloat16), [ranks, part])
        total = tf.reduce_sum(tf.cast(own, tf.float32), axis=0) * self._factor
        sums = horovod.allgather(_bits(tf.cast(total, tf.bfloat16)), name=f"{name}_sums", ignore_name_scope=True)
        return tf.bitcast(sums, tf.bfloat16)[:numbers]


def _bits(tensor: Any) -> Any:
    """As a dtype that Horovod carries."""
    return tf.bitcast(tensor, tf.int16)
