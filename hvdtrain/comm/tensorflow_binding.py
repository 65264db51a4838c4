"""Horovod's collectives through TensorFlow: on flat numpy arrays, and an allreduce of tensors for measurements.

They are graph functions, one for each name and dtype, traced at its first call: in eager mode TensorFlow drops the name
of a Horovod operation, and then two ranks that send differently named tensors are matched without a complaint.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import horovod.tensorflow as hvd
import tensorflow as tf

from data_sharding.background import in_background
from hvdtrain.comm.communicator import Array, Reduction, transport

_OPERATIONS: Final = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}


class TensorFlowBinding:
    """Implements `Binding`."""

    def __init__(self) -> None:
        self.hvd: Any = hvd

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array:
        return _run(_graph("allreduce", name, flat.dtype.name, op=_OPERATIONS[op]), flat)

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]:
        function = _graph("allreduce", name, flat.dtype.name, op=_OPERATIONS[op])  # traced here: by one thread only
        return in_background(lambda: _run(function, flat)).result  # TensorFlow has no handles

    def allgather(self, flat: Array, name: str) -> Array:
        return _run(_graph("allgather", name, flat.dtype.name), flat)

    def broadcast(self, flat: Array, name: str, root: int) -> Array:
        return _run(_graph("broadcast", name, flat.dtype.name, root_rank=root), flat)


def _run(function: Callable[[Any], Any], flat: Array) -> Array:
    with tf.device("/cpu:0"):
        result: Array = function(tf.constant(flat)).numpy()
    return result


@functools.cache
def _graph(collective: str, name: str, dtype: str, **options: int) -> Any:
    function = tf.function(
        lambda flat: getattr(hvd, collective)(flat, name=name, ignore_name_scope=True, **options),
        autograph=False,
        input_signature=[tf.TensorSpec([None], dtype)],
    )
    return function.get_concrete_function()  # else TensorFlow takes the many traces of one lambda for a mistake


class TensorFlowAllreduce:
    """Implements `hvdtrain.doctor.allreduce_times.Prepared`, in a graph, as gradients are reduced, on this worker's GPU
    if it has one."""

    def __init__(self) -> None:
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        self.device = "/gpu:0" if on_gpu else "/cpu:0"
        self.kind = transport(hvd, on_gpu)

    def prepare(self, elements: int) -> Callable[[], None]:
        """A function that sums a float32 tensor of so many elements over all ranks, and returns when that is done."""
        name = f"hvdtrain.bench.{elements}"
        with tf.device(self.device):
            tensor = tf.zeros(elements, tf.float32)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def total() -> object:
            with tf.device(self.device):
                return hvd.allreduce(tensor, op=hvd.Sum, name=name, ignore_name_scope=True)[:1]

        def run() -> None:
            total().numpy()

        return run
