"""Horovod's start and end, in a program with a training loop of its own."""

from collections.abc import Callable
from typing import Any, Final

from horovod.torch import mpi_ops

from hvdtrain.adapters.torch.device import bind_threads
from hvdtrain.comm.open import join_as_script, require_joined
from hvdtrain.torch.collectives import number_from_zero, submitted

_starts: Final = [0]
_join = submitted(mpi_ops.join)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks: `horovod.torch.init`, under every launcher that hvdtrain knows.

    Under torchrun and in a Slurm step, which do not connect processes, the ranks meet by hvdtrain's rendezvous. A rank
    that waits for others longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (here 300, where Horovod has no limit) gets an
    error. torch computes with this worker's share of the machine's cores, unless OMP_NUM_THREADS is set.

    Args:
        comm: ranks of the world, or an mpi4py communicator; None: all that the launcher has started.
        process_sets: Horovod's `ProcessSet`s, or "dynamic".

    Raises:
        UsageError: the launcher's variables and Horovod disagree about the world.
        HvdtrainError: the ranks did not find each other in time.
    """
    start: Callable[[], object] = lambda: mpi_ops.init(comm=comm, process_sets=process_sets)  # noqa: E731
    if comm is None:
        join_as_script("torch", start, with_sets=process_sets is not None)
    else:  # a part of the launcher's world: its variables say nothing about that
        start()
    _starts[0] += 1
    number_from_zero()
    bind_threads(mpi_ops.local_size())


def join(device: Any = -1) -> int:
    """Say that this rank has no more batches; returns, when all ranks have said it, the last one of them.

    Until then this rank adds zeros to the allreduces of the others, without a limit on the time.
    """
    last = int(_join(device))
    number_from_zero()
    return last


def start_count() -> int:
    """How often this process has joined a world: what ranks have agreed on does not hold in the next one."""
    return _starts[0]


def require_start(wanted: str) -> None:
    """Raise `UsageError` if `init` has not been called. Args: `wanted`: what the program called."""
    require_joined(mpi_ops, wanted)
