"""Reduce gradients of Keras variables over all ranks: the one place where that happens.

Gradients travel in buckets, last layer first, each by named collectives of its own, so that a bucket is on its way
while TensorFlow still computes the gradients of earlier layers. What travels is the wire's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdtrain.adapters.keras.buckets import densified, in_buckets
from hvdtrain.adapters.keras.comm_hooks.choice import comm_hook_of
from hvdtrain.adapters.keras.comm_hooks.interface import CommHook
from hvdtrain.errors import UsageError

Op = Literal["average", "sum"]
Compression = Literal["fp16", "bf16"] | None


# AutoGraph cannot read the imports of wires, and there is nothing to convert.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def exchange_gradients(gradients: Sequence[Any], variables: Sequence[Any], wire: CommHook) -> list[Any]:
    """What `wire` makes of every gradient. Collective; call it while tracing or eagerly.

    Args:
        gradients: a `tf.Tensor`, `tf.IndexedSlices` or None for each variable, on every rank None for the same ones.
        variables: Keras or TensorFlow variables, of any float dtype.
        wire: how buckets travel.

    Returns:
        A dense `tf.Tensor` with the gradient's dtype and the variable's shape for each gradient, None for None.

    Raises:
        UsageError: inside a function that XLA compiles, or for a variable that Keras overwrites with its gradient.
    """
    reduced, dense = _dense(gradients, variables)
    _refuse_xla()
    for bucket in in_buckets(dense, wire.travels_as):
        for gradient, value in zip(bucket.gradients, wire.reduce(bucket), strict=True):
            reduced[gradient.place] = value
    return reduced


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: Op = "average",
    compression: Compression = None,
) -> list[Any]:
    """The mean or the sum of every gradient over ranks, for any loss; arguments and errors as `exchange_gradients`.

    Args:
        op: "average" divides by the number of ranks, whatever the sizes of their batches; "sum" does not.
        compression: "fp16" sends float32 and float64 as float16; "bf16" sends these as bfloat16.

    Returns:
        As `exchange_gradients`. Dense with one rank too, so that training is the same at every number of ranks:
        Keras' `clipnorm` takes the norm of a sparse gradient from its rows as they came, without adding up those of
        one word first.
    """
    wire = comm_hook_of(op, compression)
    return _dense(gradients, variables)[0] if wire is None else exchange_gradients(gradients, variables, wire)


def _dense(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Dense gradients with None for None; and those that are there, with their places."""
    _refuse_overwritten(variables)
    there = [densified(i, g, v) for i, (g, v) in enumerate(zip(gradients, variables, strict=True)) if g is not None]
    dense: list[Any] = [None] * len(gradients)
    for gradient in there:
        dense[gradient.place] = gradient.value
    return dense, there


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
