"""Reduce gradients of Keras variables over all ranks: the one place where that happens.

Gradients travel in buckets, last layer first, each bucket as one named grouped allreduce, so that a
bucket is on its way while TensorFlow still computes the gradients of earlier layers.

A collective's name must be the same on every rank and differ from every other one in flight. Variable
paths do not serve: they hold Keras' automatic numbers ("dense_3"), which differ as soon as one rank has
built one layer more. The name is therefore the bucket's place and a checksum of its dtypes and shapes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import horovod.tensorflow as horovod
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdtrain.errors import UsageError

Op = Literal["average", "sum"]
Compression = Literal["fp16"] | None

# PyTorch DDP's default bucket (Li et al. 2020, "PyTorch Distributed", section 4.2): large enough for the
# network, small enough that the first bucket leaves early.
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class _Gradient:
    """A dense gradient and its place in the caller's list."""

    place: int
    value: Any
    shape: tuple[int, ...]


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: Op = "average",
    compression: Compression = None,
) -> list[Any]:
    """The mean or the sum of every gradient over ranks. Collective; call it while tracing or eagerly.

    Args:
        gradients: a `tf.Tensor`, `tf.IndexedSlices` or None for each variable, on every rank None for the same ones.
        variables: Keras or TensorFlow variables, of any float dtype.
        op: "average" divides by the number of ranks, whatever the sizes of their batches; "sum" does not.
        compression: "fp16" sends float32 and float64 as float16.

    Returns:
        A dense `tf.Tensor` with the gradient's dtype and the variable's shape for each gradient, None for None. Dense
        with one rank too, so that training is the same at every number of ranks: Keras' `clipnorm` takes the norm of
        a sparse gradient from its rows as they came, without adding up those of one word first.

    Raises:
        UsageError: inside a function that XLA compiles, or for a variable that Keras overwrites with its gradient.
    """
    _refuse_overwritten(variables)
    dense = [_densified(i, g, v) for i, (g, v) in enumerate(zip(gradients, variables, strict=True)) if g is not None]
    reduced: list[Any] = [None] * len(gradients)
    for gradient in dense:
        reduced[gradient.place] = gradient.value
    if horovod.size() == 1:
        return reduced
    _refuse_xla()
    for number, bucket in enumerate(_buckets(dense, compression)):
        for gradient, value in zip(bucket, _reduce_bucket(bucket, number, op, compression), strict=True):
            reduced[gradient.place] = value
    return reduced


def sum_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """`reduce_gradients` without compression for a loss that already carries each rank's share of the global batch."""
    return reduce_gradients(gradients, variables, op="sum")


def _densified(place: int, gradient: Any, variable: Any) -> _Gradient:
    shape = tuple(variable.shape)
    if isinstance(gradient, tf.IndexedSlices):
        # An allreduce of rows needs no agreement on how many rows each rank touched, an allgather does.
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return _Gradient(place, tf.ensure_shape(gradient, shape), shape)


def _buckets(gradients: Iterable[_Gradient], compression: Compression) -> list[list[_Gradient]]:
    """Gradients from the last to the first, cut into runs of one wire dtype and about `BUCKET_BYTES`."""
    filled: list[list[_Gradient]] = []
    open_buckets: dict[tf.DType, list[_Gradient]] = {}
    room: dict[tf.DType, int] = {}
    for gradient in sorted(gradients, key=lambda g: -g.place):
        dtype = _wire_dtype(gradient.value.dtype, compression)
        nbytes = dtype.size * tf.TensorShape(gradient.shape).num_elements()
        if dtype not in open_buckets or nbytes > room[dtype]:
            open_buckets[dtype] = []
            filled.append(open_buckets[dtype])
            room[dtype] = BUCKET_BYTES
        open_buckets[dtype].append(gradient)
        room[dtype] -= nbytes
    return filled


def _wire_dtype(dtype: tf.DType, compression: Compression) -> tf.DType:
    if dtype == tf.bfloat16:
        return tf.float32  # Horovod 0.28.1 has no bfloat16 on the wire.
    return tf.float16 if compression == "fp16" and dtype in (tf.float32, tf.float64) else dtype


def _reduce_bucket(bucket: Sequence[_Gradient], number: int, op: Op, compression: Compression) -> list[Any]:
    dtype = _wire_dtype(bucket[0].value.dtype, compression)
    described = ";".join(str(gradient.shape) for gradient in bucket)
    sent = horovod.grouped_allreduce(
        [tf.cast(gradient.value, dtype) for gradient in bucket],
        op=horovod.Average if op == "average" else horovod.Sum,
        name=f"hvdtrain_gradients_{number}_{dtype.name}_{zlib.crc32(described.encode()):08x}",
        # TensorFlow prefixes node names with the function that they were inlined from.
        ignore_name_scope=True,
    )
    return [tf.cast(value, gradient.value.dtype) for value, gradient in zip(sent, bucket, strict=True)]


def _refuse_xla() -> None:
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UsageError(
            "This training step is compiled by XLA (jit_compile=True).",
            "Horovod's operations do not run under XLA.",
            "compile the model with jit_compile=False, or pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to "
            "fit, which switches it off.",
        )


def _refuse_overwritten(variables: Iterable[Any]) -> None:
    names = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
    if names:
        raise UsageError(
            f"Keras overwrites {', '.join(names)} with their gradients (float8 scales).",
            "Such values are maxima, so neither their mean nor their sum over ranks is right.",
            "train without float8 quantization.",
        )
