"""Which variables have a gradient on any rank, in a loop without a graph.

There each rank may take a branch of its own in each step, and so have gradients of other variables than its peers.
The names of collectives do not say of which variables they are: what one rank has for one variable would be added to
what another rank has for another one. So the ranks say first what they have.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

from hvdtrain.errors import UsageError

_DENSE: Final = "dense"
_KINDS: Final = (_DENSE, tf.int32, tf.int64)
"""A dense gradient, and one in rows with indices of these dtypes."""


def with_zeros_of_other_ranks(
    gradients: Sequence[Any], variables: Sequence[Any], process_set: Any, prefix: str
) -> list[Any]:
    """`gradients`, with zeros in the place of None where another rank has a gradient. Collective; eager mode only.

    Args:
        gradients: a `tf.Tensor`, `tf.IndexedSlices` or None for each variable.
        variables: variables or tensors with the gradients' shapes, equally many on each rank.
        process_set: the ranks that reduce these gradients.
        prefix: begins the collective's name, and has the number of the process set in it.

    Returns: for each variable a `tf.Tensor`, a `tf.IndexedSlices` or None: of one kind and dtype on all ranks.

    Raises:
        UsageError: on all ranks, if a gradient is sparse on some ranks and dense on others.
    """
    if not gradients:
        return []
    here = np.array([[_kind(gradient) == kind for gradient in gradients] for kind in _KINDS], np.int32)
    sum_over_ranks = _summed(len(gradients), process_set, prefix)
    dense, *rows = sum_over_ranks(here).numpy() > 0
    _refuse_two_kinds(variables, dense & (rows[0] | rows[1]))
    return [
        _with_indices(gradient, variable, tf.int64 if in_64 else tf.int32)
        if in_32 or in_64
        else _zeros(variable)
        if in_whole and gradient is None
        else gradient
        for gradient, variable, in_whole, in_32, in_64 in zip(gradients, variables, dense, *rows, strict=True)
    ]


def _kind(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.indices.dtype
    return None if gradient is None else _DENSE


@functools.lru_cache(maxsize=64)
def _summed(gradients: int, process_set: Any, prefix: str) -> Callable[[Any], Any]:
    """Sums an int32 array of shape (kinds, gradients) over ranks. A graph: eager mode drops the collective's name.

    Args: `prefix`: says which process set this is; one that is removed and added again is another one.
    """
    name = f"{prefix}_present_{gradients}"

    def sum_over_ranks(counts: Any) -> Any:
        with tf.device("/cpu:0"):
            return horovod.allreduce(counts, op=horovod.Sum, name=name, process_set=process_set, ignore_name_scope=True)

    signature = [tf.TensorSpec((len(_KINDS), gradients), tf.int32)]
    graph: Callable[[Any], Any] = tf.function(sum_over_ranks, autograph=False, input_signature=signature)
    return graph


def _zeros(variable: Any) -> Any:
    return tf.zeros(tuple(variable.shape), variable.dtype)


def _with_indices(gradient: Any, variable: Any, dtype: tf.DType) -> Any:
    """The rows, or none where this rank has no gradient, with indices of this dtype."""
    shape = tuple(variable.shape)
    if gradient is None:
        no_rows = tf.zeros((0, *shape[1:]), variable.dtype)
        return tf.IndexedSlices(no_rows, tf.zeros((0,), dtype), tf.constant(shape, dtype))
    return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, dtype), gradient.dense_shape)


def _refuse_two_kinds(variables: Sequence[Any], both: Any) -> None:
    if both.any():
        shapes = [f"{place}, of shape {tuple(variables[int(place)].shape)}" for place in np.flatnonzero(both)]
        raise UsageError(
            f"Gradients are sparse (tf.IndexedSlices) on some ranks and dense on others: number {'; '.join(shapes)}.",
            "Rows cannot be added to a whole table.",
            "pass sparse_as_dense=True.",
        )
