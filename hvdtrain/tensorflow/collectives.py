"""Horovod's collectives on tensors and on Keras or TensorFlow variables: the arguments are Horovod's."""

from typing import Any

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.comm import process_sets
from hvdtrain.tensorflow.keras_variables import with_keras_variables

allgather = with_keras_variables(horovod.allgather)
allreduce = with_keras_variables(horovod.allreduce)
alltoall = with_keras_variables(horovod.alltoall)
broadcast = with_keras_variables(horovod.broadcast)
broadcast_ = with_keras_variables(horovod.broadcast_)
grouped_allgather = with_keras_variables(horovod.grouped_allgather)
grouped_allreduce = with_keras_variables(horovod.grouped_allreduce)
grouped_reducescatter = with_keras_variables(horovod.grouped_reducescatter)
reducescatter = with_keras_variables(horovod.reducescatter)


def add_process_set(process_set: Any) -> horovod.ProcessSet:
    """Form a set of ranks; call it on all ranks, with HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`.

    Raises `UsageError`: they are not ranks of this world, each of them once, or neither of the two was given.
    """
    return process_sets.add_process_set(horovod, process_set)


def barrier(process_set: object = horovod.global_process_set) -> None:
    """Wait until all ranks of the process set are here. Collective; eager. `horovod.tensorflow` has none of its own."""
    horovod.allreduce(tf.zeros(1), op=horovod.Sum, name="hvdtrain_barrier", process_set=process_set).numpy()
