"""The names of Horovod's operations in TensorFlow, which take Keras variables too."""

import horovod.tensorflow as _horovod
from horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
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
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)

from hvdtrain.tensorflow.start import init
from hvdtrain.tensorflow.variables import takes_keras_variables

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
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
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

allgather = takes_keras_variables(_horovod.allgather)
allreduce = takes_keras_variables(_horovod.allreduce)
alltoall = takes_keras_variables(_horovod.alltoall)
broadcast = takes_keras_variables(_horovod.broadcast)
broadcast_ = takes_keras_variables(_horovod.broadcast_)
grouped_allgather = takes_keras_variables(_horovod.grouped_allgather)
grouped_allreduce = takes_keras_variables(_horovod.grouped_allreduce)
grouped_reducescatter = takes_keras_variables(_horovod.grouped_reducescatter)
reducescatter = takes_keras_variables(_horovod.reducescatter)
