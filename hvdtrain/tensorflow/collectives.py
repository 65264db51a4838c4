"""Horovod's collectives on tensors and on Keras or TensorFlow variables: the arguments are Horovod's."""

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.comm import process_sets
from hvdtrain.comm.collective_inputs import Tensors, require_tensors
from hvdtrain.tensorflow.keras_variables import with_keras_variables

F = TypeVar("F", bound=Callable[..., Any])

_TENSORS: Final = Tensors(
    lambda value: value is not None, "a tensor, as tf.constant(value)", "tf.reshape(tensor, [1])"
)  # its operations make tensors of numbers and lists


def _of_tensors(function: F) -> F:
    """A collective of Horovod's, which may be given Keras variables. Raises `WrongTensorError`: see `require_tensors`.

    Its first argument is a tensor, or, where it is grouped, a list of some.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first: Any = args[0] if args else kwargs.get("tensors", kwargs.get("tensor"))
        given = first if function.__name__.startswith("grouped") else (first,)
        require_tensors(function.__name__, given, _TENSORS)
        return function(*args, **kwargs)

    return with_keras_variables(call)  # type: ignore[return-value]


allgather = _of_tensors(horovod.allgather)
allreduce = _of_tensors(horovod.allreduce)
alltoall = _of_tensors(horovod.alltoall)
broadcast = _of_tensors(horovod.broadcast)
broadcast_ = with_keras_variables(horovod.broadcast_)
grouped_allgather = _of_tensors(horovod.grouped_allgather)
grouped_allreduce = _of_tensors(horovod.grouped_allreduce)
grouped_reducescatter = _of_tensors(horovod.grouped_reducescatter)
reducescatter = _of_tensors(horovod.reducescatter)


def add_process_set(process_set: Any) -> horovod.ProcessSet:
    """Form a set of ranks; call it on all ranks, with HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`.

    Raises `UsageError`: they are not ranks of this world, each of them once, or neither of the two was given.
    """
    return process_sets.add_process_set(horovod, process_set)


def barrier(process_set: object = horovod.global_process_set) -> None:
    """Wait until all ranks of the process set are here. Collective; eager. `horovod.tensorflow` has none of its own."""
    horovod.allreduce(tf.zeros(1), op=horovod.Sum, name="hvdtrain_barrier", process_set=process_set).numpy()
