"""Local SGD in Keras: ranks update with their own or their process set's gradients, and average weights at intervals.

The papers are named in torch's module of that name.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, ChosenSync
from hvdtrain.adapters.keras.comm_hooks import cut, flattened
from hvdtrain.adapters.keras.gradient_sync import GradientSync
from hvdtrain.adapters.keras.graph_clock import Waiting
from hvdtrain.adapters.sync_state import PeriodicAverage, in_buckets

_LOW = (tf.bfloat16, tf.float16)  # sent as float32: Horovod has no bfloat16, and sums in float16 would round


class LocalSgd(PeriodicAverage, GradientSync):
    """As torch's of that name.

    Args: `optimizer`: built; its float variables are averaged too, but not the learning rate, which is equal anyway.
    """

    def __init__(self, model: Any, optimizer: Any, chosen: ChosenSync, waiting: Waiting) -> None:
        import horovod.tensorflow as hvd

        self._hvd: Any = hvd
        self._process_set, self._ranks = chosen.process_set, chosen.ranks
        super().__init__(chosen, tf.function(self._average_graph, jit_compile=False, autograph=False))
        slots = [v for v in optimizer.variables if v is not optimizer._learning_rate]
        self._averaged = [v for v in (*model.trainable_variables, *slots) if tf.as_dtype(v.dtype).is_floating]
        self._waiting = waiting

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        dense = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        if self._ranks == 1:
            return dense
        present = [place for place, gradient in enumerate(dense) if gradient is not None]
        hvd, local = self._hvd, [dense[place] for place in reversed(present)]  # the last layer's are ready first
        summed = self._waiting.over(local, lambda: self._allreduce(local, "hvdtrain_set", hvd.Sum, self._process_set))
        for place, gradient in zip(reversed(present), summed, strict=True):
            dense[place] = gradient
        return dense

    def _average_graph(self) -> None:
        hvd, local = self._hvd, [variable.value for variable in self._averaged]
        means = self._waiting.over(
            local, lambda: self._allreduce(local, "hvdtrain_weights", hvd.Average, hvd.global_process_set)
        )
        for variable, mean in zip(self._averaged, means, strict=True):
            variable.assign(mean)

    def _allreduce(self, values: Sequence[Any], name: str, op: Any, process_set: Any) -> list[Any]:
        """Each of `values` over ranks, in flat buckets; their order, and so their names, are the same on all ranks."""
        results: dict[int, Any] = {}
        buckets = in_buckets(
            range(len(values)),
            lambda place: values[place].dtype,
            lambda place: values[place].dtype.size * values[place].shape.num_elements(),
            BUCKET_BYTES,
        )
        for number, places in enumerate(buckets):
            dtype = values[places[0]].dtype
            flat = flattened([values[place] for place in places], tf.float32 if dtype in _LOW else dtype)
            reduced = self._hvd.allreduce(
                flat, op=op, name=f"{name}_{number}", ignore_name_scope=True, process_set=process_set
            )
            parts = cut(tf.cast(reduced, dtype), [values[place].shape for place in places])
            results |= dict(zip(places, parts, strict=True))
        return [results[place] for place in range(len(values))]
