"""`import hvdtrain.torch.distributed as dist` in the place of `import torch.distributed as dist`, on Horovod.

The functions that training scripts use beside `DistributedDataParallel`. Ranks are read from the variables of any
launcher: torchrun, Slurm, horovodrun, mpirun. To import it sets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as
torchrun does, where the launcher has others. torch.distributed itself is not touched, and may be used beside this.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from enum import Enum
from typing import Any, Final, NoReturn

import torch
from horovod.torch import mpi_ops

from hvdtrain.comm.communicator import transport
from hvdtrain.errors import UsageError, missing_name
from hvdtrain.torch.call_arguments import next_name
from hvdtrain.torch.collectives import bounded, submitted, synchronize
from hvdtrain.torch.data_parallel import DistributedDataParallel
from hvdtrain.torch.functions import allgather_object, broadcast_object
from hvdtrain.torch.process_groups import close_group, for_members, is_outside, open_group, process_set_of
from hvdtrain.torch.rank_variables import announce, set_rank_variables
from hvdtrain.torch.sampler import DistributedSampler
from hvdtrain.torch.sent_dtypes import as_before, as_known, as_summable
from hvdtrain.torch.start import init, require_start

__all__ = [
    "DistributedDataParallel",
    "DistributedSampler",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "get_backend",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
    "is_torchelastic_launched",
    "new_group",
    "reduce",
]

set_rank_variables(os.environ)
_begin_allreduce: Final = submitted(mpi_ops.allreduce_async_)
_begin_broadcast: Final = submitted(mpi_ops.broadcast_async_)


class ReduceOp(Enum):
    """How `all_reduce` combines tensors."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


class group:  # noqa: N801  torch's name
    """`group.WORLD`: all ranks."""

    WORLD: Final = mpi_ops.global_process_set


_OPS = {
    ReduceOp.SUM: mpi_ops.Sum,
    ReduceOp.AVG: mpi_ops.Average,
    ReduceOp.PRODUCT: mpi_ops.Product,
    ReduceOp.MIN: mpi_ops.Min,
    ReduceOp.MAX: mpi_ops.Max,
}


class Work:
    """A collective that runs in the background."""

    def __init__(self, handle: int | None, sent: torch.Tensor | None = None, into: torch.Tensor | None = None) -> None:
        self._handle, self._sent, self._into = handle, sent, into

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002  the job's limit on waiting holds
        """Return when the tensor has its result."""
        if self._handle is None:
            return True
        synchronize(self._handle)
        self._handle = None
        if self._sent is not None and self._into is not None and not _is_same_memory(self._sent, self._into):
            self._into.copy_(self._sent)
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._handle is None or bool(mpi_ops.poll(self._handle))


def init_process_group(
    backend: str | None = None,  # noqa: ARG001  Horovod chooses
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    **others: Any,  # noqa: ARG001  group_name, pg_options, device_id: names and settings of torch's
) -> None:
    """Join the other ranks, as `hvd.init()`.

    Args:
        init_method: "env://" or "tcp://HOST:PORT"; with `world_size` and `rank` for processes that no launcher knows.
        timeout: how long a collective may wait for a rank; 300 seconds by default.

    Raises:
        UsageError: a store or a file is given, or numbers that contradict the launcher's.
    """
    if store is not None or (init_method or "env://").startswith("file://"):
        raise UsageError(
            "init_process_group was given a store or a file to meet in.",
            "Horovod's ranks meet through their launcher, or at an address.",
            'start the script with a launcher, or give init_method="tcp://HOST:PORT", world_size and rank.',
        )
    if timeout is not None:
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(timeout.total_seconds()))))
    if world_size > 0 and rank >= 0:
        announce((init_method or "env://").partition("://")[2].rstrip("/"), world_size, rank, os.environ)
    init()
    for what, given, found in (("rank", rank, mpi_ops.rank()), ("world_size", world_size, mpi_ops.size())):
        if given >= 0 and given != found:
            raise UsageError(
                f"init_process_group was given {what}={given}, and the launcher's variables say {found}.",
                "Data would be divided for another world than the one that trains.",
                f"leave {what} out.",
            )


def destroy_process_group(group: Any = None) -> None:
    """Leave the world, or a group, which all ranks do together, also those outside of it."""
    if group in (None, mpi_ops.global_process_set):
        mpi_ops.shutdown()
    else:
        close_group(group)


def is_available() -> bool:
    """True: Horovod is there."""
    return True


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return bool(mpi_ops.is_initialized())


def is_torchelastic_launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_backend(group: Any = None) -> str:  # noqa: ARG001  all groups have the same
    """What carries tensors: "nccl", "mpi" or "gloo"."""
    require_start("get_backend()")
    return transport(mpi_ops, torch.cuda.is_available())


def get_rank(group: Any = None) -> int:
    """This process's number, from 0; in a group -1 where it is not in it."""
    require_start("get_rank()")
    if group is None:
        return int(mpi_ops.rank())
    return -1 if is_outside(process_set_of(group)) else int(group.rank())


def get_world_size(group: Any = None) -> int:
    """How many processes there are, or are in the group: -1 where this one is not in it."""
    require_start("get_world_size()")
    if group is None:
        return int(mpi_ops.size())
    return -1 if is_outside(process_set_of(group)) else int(group.size())


def get_process_group_ranks(group: Any = None) -> list[int]:
    """The numbers in the world of the ranks of the group, or all; also for ranks outside of it."""
    require_start("get_process_group_ranks()")
    return list(process_set_of(group).ranks)


def new_group(ranks: Iterable[int] | None = None, **others: Any) -> Any:  # noqa: ARG001  torch's settings
    """A set of ranks, or one more group of the same ranks, which then share one order of collectives; call it on all
    ranks.

    Raises:
        UsageError: they are not ranks of this world, each of them once.
        FixedProcessSetsError: HOROVOD_DYNAMIC_PROCESS_SETS=1 was not set before `init_process_group`, and such a group
            is not there yet.
    """
    require_start("new_group()")
    return open_group(range(mpi_ops.size()) if ranks is None else ranks)


@for_members
def all_reduce(
    tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce in place over all ranks; with `async_op` in the background. Complex numbers can be added up only."""
    if tensor.is_complex() and _op(op) not in (mpi_ops.Sum, mpi_ops.Average):
        raise UsageError(
            f"all_reduce was given complex numbers and {op}.",
            "Horovod would combine real and imaginary parts each by themselves.",
            "use ReduceOp.SUM or ReduceOp.AVG.",
        )
    chosen, tensor = _op(op), tensor.detach()  # it may be a parameter
    content = tensor.contiguous()
    sent = as_summable(content)
    handle = _begin_allreduce(sent, name=_name("all_reduce", group), op=chosen, process_set=process_set_of(group))
    return _started(Work(handle, content if content.is_complex() else sent, tensor), async_op)


@for_members
def reduce(
    tensor: torch.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """As `all_reduce`: Horovod has no reduction to one rank, so that all have the result, `dst` among them."""
    del dst
    return all_reduce(tensor, op, group, async_op)


@for_members
def broadcast(tensor: torch.Tensor, src: int, group: Any = None, async_op: bool = False) -> Work | None:
    """Put rank `src`'s values into all ranks' tensors."""
    tensor = tensor.detach()  # it may be a parameter
    content = tensor.contiguous()
    handle = _begin_broadcast(as_known(content), src, name=_name("broadcast", group), process_set=process_set_of(group))
    return _started(Work(handle, content, tensor), async_op)


@for_members
def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Put each rank's tensor, all of one shape, into the list; with `async_op` the `Work` is done already."""
    rows = _gathered(tensor.unsqueeze(0), group)
    for into, row in zip(tensor_list, rows, strict=True):
        into.copy_(row)
    return _started(Work(None), async_op)


@for_members
def all_gather_into_tensor(
    output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Put all ranks' tensors, joined along the first axis or as further rows, into one tensor; `async_op` as above."""
    output_tensor.copy_(_gathered(input_tensor, group).view_as(output_tensor))
    return _started(Work(None), async_op)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Put each rank's object into the list. Objects are pickled."""
    require_start("all_gather_object()")
    if group not in (None, mpi_ops.global_process_set):
        raise UsageError(
            "all_gather_object was given a group.",
            "Horovod gathers objects of all ranks only.",
            "leave group out, and choose the group's objects from the list.",
        )
    object_list[:] = allgather_object(obj, name=_name("all_gather_object", None))


@for_members
def broadcast_object_list(
    object_list: list[Any],
    src: int = 0,
    group: Any = None,
    device: Any = None,  # noqa: ARG001  torch's
) -> None:
    """Put rank `src`'s objects into all ranks' lists. Objects are pickled."""
    name = _name("broadcast_object_list", group)
    object_list[:] = broadcast_object(object_list, root_rank=src, name=name, process_set=process_set_of(group))


@for_members
def barrier(group: Any = None, async_op: bool = False, **others: Any) -> Work | None:  # noqa: ARG001  torch's device_ids
    """Return when all ranks have called it; with `async_op` the `Work` is done already."""
    bounded(mpi_ops.barrier)(process_set=process_set_of(group))
    return _started(Work(None), async_op)


def _gathered(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    content = tensor.detach().contiguous().view(tensor.shape or (1,))
    rows = bounded(mpi_ops.allgather)(
        as_known(content), name=_name("all_gather", group), process_set=process_set_of(group)
    )
    return as_before(rows, tensor.dtype)


def _op(op: Any) -> Any:
    """Horovod's operation for ours, or for torch's of the same name."""
    name = str(op).rpartition(".")[2]
    if name not in ReduceOp.__members__:
        raise UsageError(
            f"A reduction was to be made by {op}.",
            "Horovod has no such one.",
            f"use ReduceOp.{', ReduceOp.'.join(ReduceOp.__members__)}.",
        )
    return _OPS[ReduceOp[name]]


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _started(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


def _name(kind: str, group: Any) -> str:
    """All ranks of the group call the same collectives in the same order, as torch requires."""
    return next_name(f"hvdtrain.distributed.{kind}", process_set_of(group))


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.torch.distributed", name, __all__, "torch.distributed itself may be used beside it")
