"""Horovod's start and end, in a program with a training loop of its own."""

import os
from collections.abc import Callable
from typing import Any, Final

from horovod.torch import mpi_ops

from hvdtrain.adapters.torch.device import bind_threads
from hvdtrain.comm.horovod_world import is_elastic
from hvdtrain.comm.open import join_as_script, join_part_as_script, require_joined
from hvdtrain.torch.call_arguments import number_from_zero
from hvdtrain.torch.collectives import submitted
from hvdtrain.torch.late_worker import meet_others

_starts: Final = [0]
_meetings: Final = [0]
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
        UsageError: the launcher's variables and Horovod disagree about the world, or `process_sets` are not of it
            (not known in an elastic job and with `comm`, where Horovod's own error comes).
        HvdtrainError: the ranks did not find each other in time.
    """
    is_running = mpi_ops.is_initialized() and _starts[0] > 0
    start: Callable[[], object] = lambda: mpi_ops.init(comm=comm, process_sets=process_sets)  # noqa: E731
    if comm is None:
        join_as_script("torch", start, process_sets)
    else:
        join_part_as_script("torch", start)
    if is_running:  # one rank may call it again alone
        return
    _starts[0] += 1
    _have_met()
    bind_threads(mpi_ops.local_size())
    if is_elastic(os.environ):
        meet_others(_starts[0])


def join(device: Any = -1) -> int:
    """Say that this rank has no more batches; returns, when all ranks have said it, the last one of them.

    Until then this rank adds zeros to the allreduces of the others, without a limit on the time.
    """
    last = int(_join(device))
    _have_met()
    return last


def _have_met() -> None:
    _meetings[0] += 1
    number_from_zero()


def start_count() -> int:
    """How often this process has joined a world: what ranks have agreed on does not hold in the next one."""
    return _starts[0]


def meeting_count() -> int:
    """How often this process has waited until all ranks had come, in `init` or `join`: what ranks agree on between two
    of these times holds until the second one, as ranks that have joined take no part in it."""
    return _meetings[0]


def require_start(wanted: str) -> None:
    """Raise `UsageError` if `init` has not been called. Args: `wanted`: what the program called."""
    require_joined(mpi_ops, wanted)
