"""Make your own Keras 3 `model.fit` distributed, on Keras' TensorFlow backend.

    import hvdtrain.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

The names are those of `horovod.keras`, whose optimizer reduces nothing under Keras 3 and says nothing about it.
Each rank gives `fit` its own part of the data, with the same number of batches on every rank.
"""

from typing import Any

from hvdtrain.errors import missing_name
from hvdtrain.keras import callbacks, elastic
from hvdtrain.keras.optimizer import load_model
from hvdtrain.keras.runtime import assert_in_sync, init
from hvdtrain.keras.values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter
from hvdtrain.tensorflow import (
    Adasum,
    Average,
    Compression,
    DistributedOptimizer,
    PartialDistributedOptimizer,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "assert_in_sync",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    raise missing_name("hvdtrain.keras", name, __all__)
