"""Horovod's start in a TensorFlow program with a training loop of its own."""

from typing import Any

from horovod.tensorflow import mpi_ops

from hvdtrain.adapters.keras.device import bind_device_and_threads
from hvdtrain.comm.open import join_as_script
from hvdtrain.errors import UsageError


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks: `horovod.tensorflow.init`, under every launcher that hvdtrain knows.

    Call it before TensorFlow computes anything. It pins the GPU of this local rank, shares the machine's cores among
    its workers unless threads are set, switches off the passes of TensorFlow's optimizer by which ranks add the same
    terms in different orders, and sets a limit of 300 s on waits, unless HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has one.

    Args:
        comm: ranks of the world, or an mpi4py communicator; None: all that the launcher has started.
        process_sets: Horovod's `ProcessSet`s, or "dynamic".

    Raises:
        UsageError: the launcher's variables and Horovod disagree about the world, or there are fewer GPUs than workers.
        HvdtrainError: the ranks did not find each other in time.
    """
    join(comm, process_sets)
    bind_device_and_threads(mpi_ops.local_rank(), mpi_ops.local_size())


def join(comm: Any = None, process_sets: Any = None) -> None:
    """The same for a process that has computed before: device and threads stay as they are."""

    def start() -> None:
        mpi_ops.init(comm=comm, process_sets=process_sets)

    if comm is None:
        join_as_script("tensorflow", start)
    else:  # a part of the launcher's world: its variables say nothing about that
        start()


def require_start(wanted: str) -> None:
    """Raise `UsageError` if `init` has not been called. Args: `wanted`: what the program called."""
    if not mpi_ops.is_initialized():
        raise UsageError(
            f"{wanted} was used before hvd.init().",
            "Without it no rank knows of the others.",
            "call hvd.init() as the first statement after the imports.",
        )
