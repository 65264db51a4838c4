"""Local SGD in Keras: ranks update by gradients of their own or of their process set, and average weights now and then.

As torch's `LocalSgd`; the papers are named there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import horovod.tensorflow as hvd
import tensorflow as tf

from hvdtrain.adapters.keras.buckets import BUCKET_BYTES
from hvdtrain.adapters.keras.waiting import Waiting
from hvdtrain.adapters.stateless import StatelessGradientSync
from hvdtrain.comm.process_sets import own_process_set

_LOW = (tf.bfloat16, tf.float16)  # travel as float32: Horovod has no bfloat16, and sums in float16 would round


def open_local_sgd(model: Any, optimizer: Any, sync_every: int, in_sets: bool) -> LocalSgd:
    """The exchange of --sync-every; `in_sets`: Horovod's process sets have been formed (`comm.process_sets`)."""
    return LocalSgd(model, optimizer, sync_every, own_process_set() if in_sets else None)


@final
class LocalSgd(StatelessGradientSync):
    """Implements `GradientSync`; as torch's of that name.

    Args:
        model: its trainable variables are averaged.
        optimizer: built; its float variables are averaged too, but not the learning rate, which is equal anyway.
        sync_every: updates from one average to the next.
        process_set: Horovod's set that this rank is in; None: each rank is alone.
    """

    def __init__(self, model: Any, optimizer: Any, sync_every: int, process_set: Any) -> None:
        self._sync_every, self._process_set = sync_every, process_set
        self._of_set = 1 if process_set is None else process_set.size()
        self.loss_multiplier = hvd.size() / self._of_set
        slots = [v for v in optimizer.variables if v is not optimizer._learning_rate]
        self._averaged = [v for v in (*model.trainable_variables, *slots) if tf.as_dtype(v.dtype).is_floating]
        self._average = tf.function(self._average_graph, jit_compile=False, autograph=False)
        self._waiting = Waiting()
        self._apart = False

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        dense = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        if self._of_set == 1:
            return dense
        present = [place for place, gradient in enumerate(dense) if gradient is not None]
        own = [dense[place] for place in reversed(present)]  # the last layer's are there first
        summed = self._waiting.over(own, lambda: _allreduce(own, "hvdtrain_set", hvd.Sum, self._process_set))
        for place, gradient in zip(reversed(present), summed, strict=True):
            dense[place] = gradient
        return dense

    def after_update(self, step: int) -> None:
        self._apart = True
        if (step + 1) % self._sync_every == 0:
            self.average_weights()

    def average_weights(self) -> None:
        """Average, unless nothing was updated since the last time: the same on all ranks."""
        if self._apart:
            self._average()
        self._apart = False

    def _average_graph(self) -> None:
        own = [variable.value for variable in self._averaged]
        means = self._waiting.over(own, lambda: _allreduce(own, "hvdtrain_weights", hvd.Average))
        for variable, mean in zip(self._averaged, means, strict=True):
            variable.assign(mean)

    def waited(self) -> float:
        return self._waiting.read()


def _allreduce(values: Sequence[Any], name: str, op: Any, process_set: Any = hvd.global_process_set) -> list[Any]:
    """Each of `values` over ranks, in flat buckets; names follow from their order, which is the same on all ranks."""
    results: dict[int, Any] = {}
    for number, places in enumerate(_buckets(values)):
        flat = tf.concat([tf.reshape(values[place], [-1]) for place in places], axis=0)
        wire = tf.cast(flat, tf.float32) if flat.dtype in _LOW else flat
        reduced = hvd.allreduce(wire, op=op, name=f"{name}_{number}", ignore_name_scope=True, process_set=process_set)
        parts = tf.split(tf.cast(reduced, flat.dtype), [values[place].shape.num_elements() for place in places])
        results |= {place: tf.reshape(part, values[place].shape) for place, part in zip(places, parts, strict=True)}
    return [results[place] for place in range(len(values))]


def _buckets(values: Iterable[Any]) -> Iterator[list[int]]:
    """Places of values of one dtype each, about `BUCKET_BYTES` together."""
    open_ones: dict[Any, list[int]] = {}
    nbytes: dict[Any, int] = {}
    for place, value in enumerate(values):
        dtype = value.dtype
        open_ones.setdefault(dtype, []).append(place)
        nbytes[dtype] = nbytes.get(dtype, 0) + dtype.size * value.shape.num_elements()
        if nbytes[dtype] >= BUCKET_BYTES:
            yield open_ones.pop(dtype)
            nbytes[dtype] = 0
    yield from open_ones.values()
