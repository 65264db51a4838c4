"""Named collectives on small numpy arrays, for what callbacks must agree on.

In eager mode TensorFlow drops the name given to a Horovod operation: two ranks that send differently
named tensors are matched without a complaint. Every collective here therefore runs as a graph function.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


def allreduce_sum(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """The element-wise sum over ranks of a float64 vector, the same bits on every rank."""
    result: NDArray[np.float64] = _sum_function(name)(tf.constant(values, tf.float64)).numpy()
    return result


def allgather_bytes(value: bytes, name: str) -> list[bytes]:
    """Every rank's bytes, of any length each, in order of rank."""
    gather = _gather_function(name)
    lengths = _gather_function(f"{name}_length")(_as_bytes_tensor(np.int64(len(value)).tobytes())).numpy()
    gathered = gather(_as_bytes_tensor(value)).numpy().tobytes()
    ends = np.cumsum(np.frombuffer(lengths.tobytes(), np.int64)).tolist()
    return [gathered[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def allgather_json(value: Any, name: str) -> list[Any]:
    """Every rank's JSON value, in order of rank."""
    return [json.loads(text) for text in allgather_bytes(json.dumps(value).encode(), name)]


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    """Give every rank root's values of these Keras variables, which all ranks list in the same order."""

    def broadcast_all() -> None:
        for place, variable in enumerate(variables):
            _broadcast_one(variable.value, root_rank, f"{name}_{place}")

    # Called once: the plain call would warn, after a few fits, that it is traced each time.
    tf.function(broadcast_all, autograph=False).get_concrete_function()()


def _broadcast_one(variable: tf.Variable, root_rank: int, name: str) -> None:
    # Horovod has no bfloat16 and no unsigned 32 bit; both fit into these without loss.
    wire = {tf.bfloat16: tf.float32, tf.uint32: tf.int64}.get(variable.dtype, variable.dtype)
    received = horovod.broadcast(tf.cast(variable, wire), root_rank, name=name, ignore_name_scope=True)
    variable.assign(tf.cast(received, variable.dtype))


def _as_bytes_tensor(value: bytes) -> tf.Tensor:
    return tf.constant(np.frombuffer(value, np.uint8))


@functools.cache
def _sum_function(name: str) -> Any:
    def reduce(values: tf.Tensor) -> tf.Tensor:
        return horovod.allreduce(values, op=horovod.Sum, name=name, ignore_name_scope=True)

    return tf.function(reduce, autograph=False, input_signature=[tf.TensorSpec([None], tf.float64)])


@functools.cache
def _gather_function(name: str) -> Any:
    def gather(values: tf.Tensor) -> tf.Tensor:
        return horovod.allgather(values, name=name, ignore_name_scope=True)

    return tf.function(gather, autograph=False, input_signature=[tf.TensorSpec([None], tf.uint8)])
