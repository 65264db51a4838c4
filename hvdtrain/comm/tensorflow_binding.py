"""Horovod's collectives through TensorFlow, as graph functions.

In eager mode TensorFlow drops the name given to a Horovod operation: two ranks that send differently named tensors are
matched without a complaint. A graph function keeps it; there is one for each name and dtype, traced at its first call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

import horovod.tensorflow
import tensorflow as tf

from hvdtrain.comm.background import in_background
from hvdtrain.comm.interface import Array, Reduction


@final
class TensorFlowBinding:
    """Implements `Binding`."""

    def __init__(self) -> None:
        self.hvd: Any = horovod.tensorflow

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array:
        return _run(_allreduce(name, flat.dtype.name, op), flat)

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]:
        function = _allreduce(name, flat.dtype.name, op)  # traced here: by one thread only
        return in_background(lambda: _run(function, flat))

    def allgather(self, flat: Array, name: str) -> Array:
        return _run(_allgather(name, flat.dtype.name), flat)

    def broadcast(self, flat: Array, name: str, root: int) -> Array:
        return _run(_broadcast(name, flat.dtype.name, root), flat)


def _run(function: Callable[[Any], Any], flat: Array) -> Array:
    with tf.device("/cpu:0"):
        result: Array = function(tf.constant(flat)).numpy()
    return result


@functools.cache
def _allreduce(name: str, dtype: str, op: Reduction) -> Any:
    hvd = horovod.tensorflow
    operation = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}[op]
    return _graph(lambda flat: hvd.allreduce(flat, op=operation, name=name, ignore_name_scope=True), dtype)


@functools.cache
def _allgather(name: str, dtype: str) -> Any:
    return _graph(lambda flat: horovod.tensorflow.allgather(flat, name=name, ignore_name_scope=True), dtype)


@functools.cache
def _broadcast(name: str, dtype: str, root: int) -> Any:
    return _graph(lambda flat: horovod.tensorflow.broadcast(flat, root, name=name, ignore_name_scope=True), dtype)


def _graph(operation: Callable[[Any], Any], dtype: str) -> Any:
    function = tf.function(operation, autograph=False, input_signature=[tf.TensorSpec([None], dtype)])
    return function.get_concrete_function()  # else TensorFlow takes the many traces of one lambda for a mistake
