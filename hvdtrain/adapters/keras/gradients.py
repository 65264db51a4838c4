"""Gradients of Keras variables reduced over all ranks: the one place where that happens.

They are cut into buckets, the last layer's first, each with named collectives of its own, so that a bucket's
communication starts while TensorFlow still computes the gradients of earlier layers.

A collective's name must be the same on every rank and differ from all others that are pending. Variable paths cannot
be used: they hold Keras' automatic numbers ("dense_3"), which differ as soon as one rank has built one layer more. The
name is therefore the bucket's place and a checksum of its dtypes and shapes.
"""

import functools
import math
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.keras.comm_hooks import REDUCTIONS, CommHook, GradBucket, Gradient
from hvdtrain.adapters.sync_state import in_buckets
from hvdtrain.comm.horovod_world import is_elastic
from hvdtrain.errors import UsageError

T = TypeVar("T")
Op = Literal["average", "sum"]
Compression = Literal["fp16", "bf16"] | None
_PREFIX: Final = "hvdtrain_gradients"


# There is nothing for AutoGraph to convert.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def reduce_by_hook(
    gradients: Sequence[Any], variables: Sequence[Any], hook: CommHook, cap: int, prefix: str = _PREFIX
) -> list[Any]:
    """Every gradient as `hook` reduces it. Collective; call it while tracing or eagerly.

    Args:
        gradients: a `tf.Tensor`, `tf.IndexedSlices` or None for each variable, on every rank None for the same ones.
        variables: Keras or TensorFlow variables, of any float dtype.
        cap: bytes of the largest bucket of several gradients.
        prefix: begins the names of the collectives; one for each reduction that may run beside another.

    Returns:
        A dense `tf.Tensor` with the gradient's dtype and the variable's shape for each gradient, None for None.

    Raises `UsageError`: inside a function that XLA compiles, or for a variable that Keras overwrites with its gradient.
    """
    reduced, dense = _dense(gradients, variables)
    _refuse_xla()
    for bucket in _buckets(dense, hook, cap, prefix):
        for gradient, value in zip(bucket.gradients, hook.reduce(bucket), strict=True):
            reduced[gradient.place] = value
    return reduced


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: Op = "average",
    compression: Compression = None,
    prefix: str = _PREFIX,
) -> list[Any]:
    """The mean or the sum of every gradient over ranks, for any loss; arguments and errors as `reduce_by_hook`.

    Args:
        op: "average" divides by the number of ranks, whatever the sizes of their batches; "sum" does not.
        compression: "fp16" sends float32 and float64 as float16; "bf16" sends them as bfloat16.

    Returns:
        As `reduce_by_hook`. Dense with one rank too, so that training is the same at every number of ranks: Keras'
        `clipnorm` computes the norm of a sparse gradient from its rows, without adding up those of one word first.
    """
    import horovod.tensorflow as hvd

    if hvd.size() == 1 and not is_elastic(os.environ):
        return _dense(gradients, variables)[0]
    hook = REDUCTIONS[compression or "plain"](hvd, float(hvd.size()), average=op == "average")
    reduced: list[Any]
    if not tf.executing_eagerly():
        reduced = reduce_by_hook(gradients, variables, hook, BUCKET_BYTES, prefix)
        return reduced
    reduced, dense = _dense(gradients, variables)
    layout = tuple([(gradient.shape, gradient.value.dtype) for gradient in dense])
    of_hook = type(hook), hook.loss_multiplier, op == "average"
    received = _eager_graph(*of_hook, layout, prefix)(*[gradient.value for gradient in dense])
    for gradient, value in zip(dense, received, strict=True):
        reduced[gradient.place] = value
    return reduced


@functools.lru_cache(maxsize=64)
def _eager_graph(
    kind: Any, multiplier: float, average: bool, layout: tuple[tuple[tuple[int, ...], tf.DType], ...], prefix: str
) -> Callable[..., list[Any]]:
    """A graph that reduces dense gradients of these shapes and dtypes for a loop that has none. Of which variables they
    are is not in its names: a loop may leave out other ones in each step, and would need as many graphs.

    In eager mode TensorFlow drops the names of Horovod's operations: gradients of unlike shapes would be added up where
    their buckets have one size.
    """
    import horovod.tensorflow as hvd

    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in layout]
    hook = kind(hvd, multiplier, average=average)

    def reduce(*dense: Any) -> list[Any]:
        reduced: list[Any] = reduce_by_hook(dense, specs, hook, BUCKET_BYTES, prefix)
        return reduced

    graph: Callable[..., list[Any]] = tf.function(reduce, autograph=False, input_signature=specs)
    return graph


def _dense(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Dense gradients with None for None; and those that are not None, with their places."""
    refuse_overwritten(variables)
    there = [densified(i, g, v) for i, (g, v) in enumerate(zip(gradients, variables, strict=True)) if g is not None]
    dense: list[Any] = [None] * len(gradients)
    for gradient in there:
        dense[gradient.place] = gradient.value
    return dense, there


def densified(place: int, gradient: Any, variable: Any) -> Gradient:
    """A `tf.Tensor` or `tf.IndexedSlices` as a dense gradient of the variable's shape."""
    shape = tuple(variable.shape)
    if isinstance(gradient, tf.IndexedSlices):
        # An allreduce of rows needs no agreement on how many rows each rank touched, an allgather does.
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return Gradient(place, tf.ensure_shape(gradient, shape), shape)


def _buckets(gradients: Iterable[Gradient], hook: CommHook, cap: int, prefix: str = _PREFIX) -> list[GradBucket]:
    """Gradients from the last to the first, in buckets of one dtype as which they are sent."""
    groups = grouped(sorted(gradients, key=lambda g: -g.place), hook, lambda g: g.value.dtype, lambda g: g.shape, cap)
    return [
        GradBucket(bucket_name(number, dtype, [(g.place, *g.shape) for g in group], prefix), dtype, group)
        for number, group in enumerate(groups)
        for dtype in [hook.sent_as(group[0].value.dtype)]
    ]


def grouped(
    items: Iterable[T], hook: CommHook, dtype: Callable[[T], tf.DType], shape: Callable[[T], Sequence[int]], cap: int
) -> list[list[T]]:
    """Items in their order in buckets of at most `cap` bytes, each of one dtype as which its gradients are sent."""

    def sent_as(item: T) -> tf.DType:
        return hook.sent_as(dtype(item))

    large = hook.large_bytes(on_gpu=bool(tf.config.get_visible_devices("GPU")))
    return in_buckets(items, sent_as, lambda item: sent_as(item).size * math.prod(shape(item)), cap, large)


def bucket_name(number: int, dtype: tf.DType, content: Iterable[tuple[int, ...]], prefix: str = _PREFIX) -> str:
    """Args: `content`: what ranks must have in common of each gradient, or they would wait for each other."""
    described = ";".join(map(str, content))
    return f"{prefix}_{number}_{dtype.name}_{zlib.crc32(described.encode()):08x}"


def _refuse_xla() -> None:
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UsageError(
            "This training step is compiled by XLA (jit_compile=True).",
            "Horovod's operations do not run under XLA.",
            "compile the model with jit_compile=False, or pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to "
            "fit, which switches it off.",
        )


def refuse_overwritten(variables: Iterable[Any]) -> None:
    """Raise `UsageError` for variables that Keras overwrites with their gradients."""
    names = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
    if names:
        raise UsageError(
            f"Keras overwrites {', '.join(names)} with their gradients (float8 scales).",
            "Such values are maxima, so neither their mean nor their sum over ranks is right.",
            "train without float8 quantization.",
        )
