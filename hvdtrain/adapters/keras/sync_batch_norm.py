"""Keras' BatchNormalization with the statistics of the whole micro batch, over all workers, on CPU and GPU.

Keras' own `synchronized=True` needs tf.distribute. Here a layer's moments are summed over ranks by one named allreduce,
and so are, in the backward pass, the gradients of the moments (as in `hvdtrain.adapters.torch.sync_batch_norm`). The
rest of the layer (momentum, the biased running variance, renormalization) stays Keras' own.
"""

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import keras
import tensorflow as tf

from hvdtrain.adapters.forward_pass import no_batch_norm, real_mask, remembered
from hvdtrain.adapters.keras.graph_clock import marked_wait
from hvdtrain.adapters.keras.numbered_calls import NumberedCalls
from hvdtrain.errors import UsageError

SumOverRanks = Callable[[Any, str], Any]
"""The element-wise sum of a flat tensor over ranks, under a name that is the same on all of them."""

_Layer: Final = keras.layers.BatchNormalization


def convert_sync_batch_norm(model: Any, sum_over_ranks: SumOverRanks | None) -> int:
    """Let every BatchNormalization in `model`, nested ones too, take its statistics over all ranks, and over real rows
    only (`batch_mask`); returns how many there are.

    Layers stay the objects they are, with their variables, paths and configs, so that what is saved does not change.
    To be called before the model's first call is traced.

    Args: `sum_over_ranks`: `horovod_sum`, or None with one process: then there are no collectives.

    Raises `UsageError`: there is no BatchNormalization, or one of another class, whose own methods would be lost.
    """
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, _Layer)]
    if not layers:
        raise no_batch_norm(type(model).__name__)
    for layer in layers:
        if type(layer).call is not _Layer.call or type(layer)._moments is not _Layer._moments:
            raise UsageError(
                f"The layer {layer.path!r} is a {type(layer).__name__}, which is a BatchNormalization with ways of its "
                "own.",
                "--sync-batch-norm would replace them by those of Keras' BatchNormalization.",
                "build the model with keras.layers.BatchNormalization, or leave --sync-batch-norm out.",
            )
    calls = NumberedCalls()
    for place, layer in enumerate(layers):
        # In the object, not its class, so that a saved model does not name a class of ours.
        layer._moments = functools.partial(synchronized_moments, layer, place, calls, sum_over_ranks)
    return len(layers)


def horovod_sum(flat: Any, name: str) -> Any:
    """Sum of a flat tensor over ranks, in a graph or eagerly. Collective."""
    import horovod.tensorflow as hvd  # one process does not need it

    if tf.executing_eagerly():  # where Horovod's names are dropped
        return _eager_sum(name, flat.dtype)(flat)
    # TensorFlow merges operations with equal inputs, whatever their names, and perhaps not on every rank: a rank with
    # one row has another graph. The others would wait forever. So no two inputs are equal.
    mark = tf.constant([zlib.crc32(name.encode()) % 2**20], flat.dtype)
    # TensorFlow prefixes node names with the function that they were inlined from.
    (summed,) = marked_wait(
        [flat], lambda: [hvd.allreduce(tf.concat([flat, mark], 0), op=hvd.Sum, name=name, ignore_name_scope=True)]
    )
    return tf.ensure_shape(summed[:-1], flat.shape)


@functools.cache
def _eager_sum(name: str, dtype: tf.DType) -> Callable[[Any], Any]:
    function = tf.function(
        lambda flat: horovod_sum(flat, name), autograph=False, input_signature=[tf.TensorSpec([None], dtype)]
    )
    summed: Callable[[Any], Any] = function.get_concrete_function()
    return summed


@dataclass(frozen=True)
class _Statistics:
    """What a forward pass finds, and a repetition of it takes as it is."""

    mean: Any  # [C], in the inputs' dtype
    variance: Any  # the same
    share: Any  # [1], of one value in the mean; 0 where the running statistics are used instead
    chosen: Any  # which of the inputs' values are real, bool, of the inputs' first axes; None: all
    name: str


def synchronized_moments(
    layer: Any, place: int, calls: NumberedCalls, sum_over_ranks: SumOverRanks | None, inputs: Any, mask: Any
) -> tuple[Any, Any]:
    """Mean and variance [C] of the global micro batch, instead of the layer's own method."""
    axes = list(layer._reduction_axes)
    running = [tf.cast(v.value, inputs.dtype) for v in (layer.moving_mean, layer.moving_variance)]

    def total(flat: Any, name: str) -> Any:
        return flat if sum_over_ranks is None else sum_over_ranks(flat, name)

    def find() -> _Statistics:
        name = f"hvdtrain_sync_batch_norm_{place}_{calls.number(place)}"
        chosen = _chosen(inputs, mask)
        sums = total(_local_moments(tf.stop_gradient(inputs), chosen, axes), f"{name}_forward")
        return _statistics(sums, running, chosen, name)

    statistics = remembered(find)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def moments(inputs: Any) -> Any:
        def backward(to_mean: Any, to_variance: Any) -> Any:
            """Differentiate all ranks' losses: each of them depends on these moments."""
            sums = total(tf.concat([to_mean, to_variance], 0), f"{statistics.name}_backward") * statistics.share
            by_mean, by_variance = (_along(part, inputs, axes) for part in tf.split(sums, 2))
            gradient = by_mean + 2 * by_variance * (inputs - _along(statistics.mean, inputs, axes))
            return gradient if statistics.chosen is None else tf.where(_beside(statistics.chosen, inputs), gradient, 0)

        return (tf.identity(statistics.mean), tf.identity(statistics.variance)), backward

    mean, variance = moments(inputs)
    return mean, variance


def _real_rows(features: Any) -> Any:
    """The mask, bool [n], if the first axis of `features` is the batch's; None: all rows count."""
    real = real_mask()
    if real is None:
        return None
    rows, length = features.shape[0], real.shape[0]
    if rows is not None and length is not None:
        return real if rows == length else None
    everything = tf.ones(tf.shape(features)[:1], tf.bool)
    return tf.cond(tf.equal(tf.size(real), tf.size(everything)), lambda: real, lambda: everything)


def _chosen(inputs: Any, mask: Any) -> Any:
    """The batch's mask of rows, and Keras' own of places, which covers all axes but the channels'."""
    rows = _real_rows(inputs)
    if mask is None:
        return rows
    mask = tf.cast(mask, tf.bool)
    return mask if rows is None else mask & _beside(rows, mask)


def _statistics(sums: Any, running: list[Any], chosen: Any, name: str) -> _Statistics:
    """Compute mean and variance from count, sums and sums of squares over all ranks.

    Where fewer than two values are real, the running ones are used: two values are needed for a variance.
    """
    count, (totals, squares) = sums[:1], tf.split(sums[1:], 2)
    divisor, enough, dtype = tf.maximum(count, 1), count > 1, running[0].dtype
    means = totals / divisor
    mean = tf.where(enough, tf.cast(means, dtype), running[0])
    variance = tf.where(enough, tf.cast(tf.maximum(squares / divisor - means**2, 0), dtype), running[1])
    return _Statistics(mean, variance, tf.cast(tf.where(enough, 1 / divisor, 0), dtype), chosen, name)


def _local_moments(inputs: Any, chosen: Any, axes: list[int]) -> Any:
    """Count [1], sums [C] and sums of squares [C] in one float64 vector.

    Variances are taken about this rank's own mean, and only then made sums of squares, in float64.
    """
    count, sums = _count(inputs, chosen, axes), _sum(inputs, chosen, axes)
    divisor = tf.maximum(count, 1)
    mean = sums / tf.cast(divisor, inputs.dtype)
    spread = _sum(tf.square(inputs - _along(mean, inputs, axes)), chosen, axes)
    mean = tf.cast(mean, tf.float64)
    return tf.concat([count, count * mean, tf.cast(spread, tf.float64) + count * mean**2], 0)


def _sum(values: Any, chosen: Any, axes: list[int]) -> Any:
    """[C]. The mask is applied after the sums over axes that it does not have, when few values remain."""
    if chosen is None:
        return tf.reduce_sum(values, axes)
    known = len(chosen.shape)
    partial = tf.reduce_sum(values, [axis for axis in axes if axis >= known])
    return tf.reduce_sum(tf.where(chosen[..., None], partial, 0), list(range(known)))


def _count(inputs: Any, chosen: Any, axes: list[int]) -> Any:
    """float64 [1]: values a channel."""
    shape = tf.shape(inputs, tf.int64)
    known = 0 if chosen is None else len(chosen.shape)
    rest = math.prod((shape[axis] for axis in axes if axis >= known), start=tf.ones(1, tf.int64))
    count = rest if chosen is None else rest * tf.math.count_nonzero(chosen)
    return tf.cast(count, tf.float64)


def _along(channels: Any, inputs: Any, axes: list[int]) -> Any:
    """[C] instead of the inputs' channels."""
    return tf.reshape(channels, [1 if axis in axes else -1 for axis in range(len(inputs.shape))])


def _beside(chosen: Any, inputs: Any) -> Any:
    """A mask with as many axes as the inputs."""
    missing = len(inputs.shape) - len(chosen.shape)
    return tf.reshape(chosen, tf.concat([tf.shape(chosen), [1] * missing], 0))
