"""Comm hooks in Keras: what is sent for a bucket of gradients, and in how many messages. Traced into the step.

Why each one sends what it sends is explained in `hvdtrain.adapters.torch.comm_hooks`. Hooks are given Horovod's module:
one process does not need it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from hvdtrain.adapters.sync_state import HookState


@dataclass(frozen=True)
class Gradient:
    """A dense gradient and its place in the caller's list."""

    place: int
    value: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GradBucket:
    """Gradients that are reduced together."""

    name: str  # of its collective, or the beginning of their names
    dtype: tf.DType  # as which they are sent
    gradients: list[Gradient]  # of that dtype or of others that are sent as it


class CommHook(HookState, ABC):
    """How the gradients of a bucket are reduced over ranks."""

    def sent_as(self, dtype: tf.DType) -> tf.DType:
        """The dtype as which gradients of `dtype` are sent: without compression, as Horovod 0.28.1 has no bfloat16."""
        return tf.float32 if dtype == tf.bfloat16 else dtype

    @abstractmethod
    def reduce(self, bucket: GradBucket) -> list[Any]:
        """The reduced gradients, in their dtypes and shapes. Called while the step is traced."""


class PlainReduction(CommHook):
    """Gradients as they are, by one named allreduce a bucket.

    Args: `average`: the result is the mean of the ranks' gradients instead of their sum.
    """

    reduces_in_place = True

    def __init__(self, hvd: Any, loss_multiplier: float = 1.0, average: bool = False) -> None:
        super().__init__(loss_multiplier)
        self._hvd, self._average = hvd, average

    def reduce(self, bucket: GradBucket) -> list[Any]:
        return _reduced(self._hvd, bucket, self._hvd.Average if self._average else self._hvd.Sum, 1.0, 1.0)


class Float16Sum(PlainReduction):
    """Gradients sent as float16: of each rank, divided by the loss multiplier, its part of a mean."""

    reduces_in_place = False

    def sent_as(self, dtype: tf.DType) -> tf.DType:
        return tf.float16 if dtype in (tf.float32, tf.float64) else super().sent_as(dtype)

    def reduce(self, bucket: GradBucket) -> list[Any]:
        after = 1.0 if self._average else self.loss_multiplier
        return _reduced(self._hvd, bucket, self._hvd.Sum, 1 / self.loss_multiplier, after)


def _reduced(hvd: Any, bucket: GradBucket, op: Any, before: float, after: float) -> list[Any]:
    """As one flat tensor, which Horovod reduces in place: nothing but that tensor is copied together or apart."""
    values = [gradient.value for gradient in bucket.gradients]
    sent = flattened([_times(value, before) for value in values], bucket.dtype)
    # TensorFlow prefixes node names with the function that they were inlined from.
    received = hvd.allreduce(sent, op=op, name=bucket.name, ignore_name_scope=True)
    parts = cut(received, [gradient.shape for gradient in bucket.gradients])
    return [_times(tf.cast(part, value.dtype), after) for part, value in zip(parts, values, strict=True)]


def _times(value: Any, factor: float) -> Any:
    return value if factor == 1 else value * tf.cast(factor, value.dtype)


class BFloat16Sum(PlainReduction):
    """Gradients sent as bfloat16. All ranks end with the same bits."""

    reduces_in_place = False

    def sent_as(self, dtype: tf.DType) -> tf.DType:
        return dtype if dtype == tf.float16 else tf.bfloat16

    def reduce(self, bucket: GradBucket) -> list[Any]:
        if bucket.dtype == tf.float16:
            return super().reduce(bucket)
        values = [gradient.value for gradient in bucket.gradients]
        reduced = self._reduce_flat(flattened(values, tf.bfloat16), bucket.name)
        parts = cut(reduced, [gradient.shape for gradient in bucket.gradients])
        return [tf.cast(part, value.dtype) for part, value in zip(parts, values, strict=True)]

    def _reduce_flat(self, flat: Any, name: str) -> Any:
        numbers, ranks = flat.shape[0], self._hvd.size()
        part = -(-numbers // ranks)
        sent = tf.pad(flat, [[0, ranks * part - numbers]])
        received = self._hvd.alltoall(_bits(sent), name=f"{name}_parts", ignore_name_scope=True)
        rows = tf.reshape(tf.bitcast(received, tf.bfloat16), [ranks, part])
        total = tf.reduce_sum(tf.cast(rows, tf.float32), axis=0) * (1 / ranks if self._average else 1.0)
        sums = self._hvd.allgather(_bits(tf.cast(total, tf.bfloat16)), name=f"{name}_sums", ignore_name_scope=True)
        return tf.bitcast(sums, tf.bfloat16)[:numbers]


def _bits(tensor: Any) -> Any:
    """View a tensor as a dtype that Horovod can send."""
    return tf.bitcast(tensor, tf.int16)


class Adasum(CommHook):
    """Gradients combined variable by variable, by the rule of torch's hook of that name."""

    takes_own_means = True

    def __init__(self, hvd: Any) -> None:
        super().__init__(loss_multiplier=hvd.size())
        self._hvd = hvd

    def reduce(self, bucket: GradBucket) -> list[Any]:
        # One by one: horovod.tensorflow 0.28.1's grouped_allreduce has a variable unbound where the op is Adasum.
        return [
            tf.cast(self._combined(tf.cast(gradient.value, bucket.dtype), f"{bucket.name}_{i}"), gradient.value.dtype)
            for i, gradient in enumerate(bucket.gradients)
        ]

    def _combined(self, value: Any, name: str) -> Any:
        return self._hvd.allreduce(value, op=self._hvd.Adasum, name=name, ignore_name_scope=True)


REDUCTIONS: Final = {"plain": PlainReduction, "fp16": Float16Sum, "bf16": BFloat16Sum}


_ROW = 32
"""Numbers. TensorFlow hands out a part of a tensor without a copy where its rows have a multiple of 64 bytes."""


def flattened(values: Sequence[Any], dtype: tf.DType) -> Any:
    """All numbers in order in one tensor of shape [numbers], as `dtype`; zeros fill each value's last row."""
    flat = [tf.reshape(tf.cast(value, dtype), [-1]) for value in values]
    missing = [-value.shape[0] % _ROW for value in flat]
    return tf.concat([tf.pad(value, [[0, m]]) if m else value for value, m in zip(flat, missing, strict=True)], 0)


def cut(flat: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """The tensors of these shapes that `flattened` was given: views of `flat`."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = tf.split(tf.reshape(flat, [-1, _ROW]), [-(-size // _ROW) for size in sizes])
    return [_view(part, size, shape) for part, size, shape in zip(parts, sizes, shapes, strict=True)]


def _view(rows: Any, size: int, shape: Sequence[int]) -> Any:
    numbers = rows if size == math.prod(rows.shape) else tf.reshape(rows, [-1])[:size]
    return tf.reshape(numbers, shape)
