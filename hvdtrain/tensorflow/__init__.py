"""Distributed TensorFlow 2 training loops of your own, with the names of `horovod.tensorflow` and Keras 3 variables.

    import hvdtrain.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    if first_step:
        hvd.broadcast_variables(model.weights, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)

What needs TensorFlow 1 (sessions, their hooks and optimizers) is refused with a sentence that says what to use.
"""

from typing import Any

from horovod.tensorflow import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    allgather_object,
    broadcast_object,
    ccl_built,
    check_extension,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    handle_average_backwards_compatibility,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    refs_to_vars,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    split_list,
    start_timeline,
    stop_timeline,
    util,
    vars_to_refs,
)
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401 (scripts use it)

from hvdtrain.errors import missing_name
from hvdtrain.tensorflow import compression, elastic, functions, mpi_ops
from hvdtrain.tensorflow.batch_normalization import SyncBatchNormalization
from hvdtrain.tensorflow.broadcasting import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_object_fn,
    broadcast_variables,
)
from hvdtrain.tensorflow.collectives import (
    add_process_set,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hvdtrain.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from hvdtrain.tensorflow.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvdtrain.tensorflow.start import init
from hvdtrain.tensorflow.summed_passes import LocalGradientAggregationHelper

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "compression",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "functions",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "util",
    "vars_to_refs",
]


def __getattr__(name: str) -> Any:
    raise missing_name("hvdtrain.tensorflow", name, __all__)
