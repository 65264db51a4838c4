"""The names of `horovod.torch.mpi_ops`; those that wait for other ranks have a deadline (see `collectives`)."""

from collections.abc import Sequence

from horovod.torch import mpi_ops as _horovod
from horovod.torch.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    _basics,  # noqa: F401  private, and read by scripts that ask which process sets there are
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
)

from hvdtrain.comm import process_sets
from hvdtrain.torch.call_arguments import number_set_from_zero
from hvdtrain.torch.collectives import bounded, submitted, synchronize
from hvdtrain.torch.start import init, join

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

allgather = bounded(_horovod.allgather)
allreduce = bounded(_horovod.allreduce)
allreduce_ = bounded(_horovod.allreduce_)
alltoall = bounded(_horovod.alltoall)
barrier = bounded(_horovod.barrier)
broadcast = bounded(_horovod.broadcast)
broadcast_ = bounded(_horovod.broadcast_)
grouped_allgather = bounded(_horovod.grouped_allgather)
grouped_allreduce = bounded(_horovod.grouped_allreduce)
grouped_allreduce_ = bounded(_horovod.grouped_allreduce_)
grouped_reducescatter = bounded(_horovod.grouped_reducescatter)
reducescatter = bounded(_horovod.reducescatter)
remove_process_set = bounded(_horovod.remove_process_set)

allgather_async = submitted(_horovod.allgather_async)
allreduce_async = submitted(_horovod.allreduce_async)
allreduce_async_ = submitted(_horovod.allreduce_async_)
alltoall_async = submitted(_horovod.alltoall_async)
broadcast_async = submitted(_horovod.broadcast_async)
broadcast_async_ = submitted(_horovod.broadcast_async_)
grouped_allgather_async = submitted(_horovod.grouped_allgather_async)
grouped_allreduce_async = submitted(_horovod.grouped_allreduce_async)
grouped_allreduce_async_ = submitted(_horovod.grouped_allreduce_async_)
grouped_reducescatter_async = submitted(_horovod.grouped_reducescatter_async)
reducescatter_async = submitted(_horovod.reducescatter_async)

_add_process_set = bounded(process_sets.add_process_set)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Form a set of ranks; call it on all ranks, with HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`.

    Returns it with its number.

    Raises:
        UsageError: they are not ranks of this world, each of them once, or neither of the two was given.
        ValueError: Horovod's; there is a set of these ranks already.
    """
    added: ProcessSet = _add_process_set(_horovod, process_set)
    number_set_from_zero(added)
    return added
