"""Gradients of Keras variables in buckets: the last layer's first, few and large. It needs no Horovod.

A collective's name must be the same on every rank and differ from every other one in flight. Variable
paths do not serve: they hold Keras' automatic numbers ("dense_3"), which differ as soon as one rank has
built one layer more. The name is therefore the bucket's place and a checksum of its dtypes and shapes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# PyTorch DDP's default bucket (Li et al. 2020, "PyTorch Distributed", section 4.2): large enough for the
# network, small enough that the first bucket leaves early.
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Gradient:
    """A dense gradient and its place in the caller's list."""

    place: int
    value: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together.

    Attributes:
        name: of its collective, or the beginning of their names.
        dtype: as which they travel.
        gradients: of that dtype or of others that travel as it.
    """

    name: str
    dtype: tf.DType
    gradients: list[Gradient]


def densified(place: int, gradient: Any, variable: Any) -> Gradient:
    """A `tf.Tensor` or `tf.IndexedSlices` as a dense gradient of the variable's shape."""
    shape = tuple(variable.shape)
    if isinstance(gradient, tf.IndexedSlices):
        # An allreduce of rows needs no agreement on how many rows each rank touched, an allgather does.
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return Gradient(place, tf.ensure_shape(gradient, shape), shape)


def in_buckets(gradients: Iterable[Gradient], travels_as: Callable[[tf.DType], tf.DType]) -> list[Bucket]:
    """Gradients from the last to the first, cut into runs of one dtype on the way and about `BUCKET_BYTES`."""
    filled: list[tuple[tf.DType, list[Gradient]]] = []
    open_buckets: dict[tf.DType, list[Gradient]] = {}
    room: dict[tf.DType, int] = {}
    for gradient in sorted(gradients, key=lambda g: -g.place):
        dtype = travels_as(gradient.value.dtype)
        nbytes = dtype.size * tf.TensorShape(gradient.shape).num_elements()
        if dtype not in open_buckets or nbytes > room[dtype]:
            open_buckets[dtype] = []
            filled.append((dtype, open_buckets[dtype]))
            room[dtype] = BUCKET_BYTES
        open_buckets[dtype].append(gradient)
        room[dtype] -= nbytes
    return [Bucket(_name(number, dtype, content), dtype, content) for number, (dtype, content) in enumerate(filled)]


def _name(number: int, dtype: tf.DType, gradients: Sequence[Gradient]) -> str:
    described = ";".join(str(gradient.shape) for gradient in gradients)
    return f"hvdtrain_gradients_{number}_{dtype.name}_{zlib.crc32(described.encode()):08x}"
