"""Horovod's collectives through TensorFlow: on flat numpy arrays, and an allreduce of tensors for measurements.

They are graphs, one for each name and dtype: in eager mode TensorFlow drops the name of a Horovod operation, and then
two ranks that send differently named tensors are matched without a complaint. To trace one takes 10 ms, and each
agreement of ranks has a name of its own. So one is traced for each kind of collective, and copied for each name.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.python.eager import context

from data_sharding.background import in_background
from hvdtrain.comm.communicator import Array, Reduction, transport

_OPERATIONS: Final = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}
_PLACEHOLDER: Final = "hvdtrain.any_name"
_DEVICE: Final = "/device:CPU:0"
_numbers = itertools.count()


class TensorFlowBinding:
    """Implements `Binding`."""

    def __init__(self) -> None:
        self.hvd: Any = hvd

    def allreduce(self, flat: Array, name: str, op: Reduction) -> Array:
        return _run(_graph("allreduce", name, flat.dtype.name, op=_OPERATIONS[op]), flat)

    def start_allreduce(self, flat: Array, name: str, op: Reduction) -> Callable[[], Array]:
        graph = _graph("allreduce", name, flat.dtype.name, op=_OPERATIONS[op])  # made here: by one thread only
        return in_background(lambda: _run(graph, flat)).result  # TensorFlow has no handles

    def allgather(self, flat: Array, name: str) -> Array:
        return _run(_graph("allgather", name, flat.dtype.name), flat)

    def broadcast(self, flat: Array, name: str, root: int) -> Array:
        return _run(_graph("broadcast", name, flat.dtype.name, root_rank=root), flat)


def _run(graph: str, flat: Array) -> Array:
    with tf.device(_DEVICE):
        (result,) = tf.raw_ops.StatefulPartitionedCall(args=[tf.constant(flat)], Tout=[flat.dtype], f=graph)
    array: Array = result.numpy()
    return array


@functools.cache
def _graph(collective: str, name: str, dtype: str, **options: int) -> str:
    """What TensorFlow calls the graph of a collective of this name."""
    traced = _traced(collective, dtype, **options)
    copied = type(traced).FromString(traced.SerializeToString())
    copied.signature.name = f"hvdtrain_{collective}_{next(_numbers)}"
    for node in copied.node_def:
        node.name = _renamed(node.name, name)
        node.input[:] = [_renamed(place, name) for place in node.input]
        node.device = _DEVICE
    for output, place in copied.ret.items():
        copied.ret[output] = _renamed(place, name)
    context.context().add_function_def(copied)
    graph: str = copied.signature.name
    return graph


def _renamed(place: str, name: str) -> str:
    """ "NAME:sum:0" of "…:sum:0" where the operation in front is the collective."""
    operation, colon, output = place.partition(":")
    return (name if operation == _PLACEHOLDER else operation) + colon + output


@functools.cache
def _traced(collective: str, dtype: str, **options: int) -> Any:
    """The graph of a collective of the name `_PLACEHOLDER`, as a FunctionDef."""
    function = tf.function(
        lambda flat: getattr(hvd, collective)(flat, name=_PLACEHOLDER, ignore_name_scope=True, **options),
        autograph=False,
        input_signature=[tf.TensorSpec([None], dtype)],
    )
    return function.get_concrete_function().function_def


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
