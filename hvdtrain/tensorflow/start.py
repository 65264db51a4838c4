"""`hvd.init()` of programs with TensorFlow loops of their own."""

import functools
from typing import Any

import horovod.tensorflow as horovod

from hvdtrain.adapters.keras.device import take_share
from hvdtrain.comm.open import join_as_script, join_part_as_script, require_joined


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job. Call it first, before TensorFlow computes anything.

    Starts Horovod with a finite stall limit (60 s to the warning, 300 s to the end, unless the environment says
    otherwise), shares the machine's cores out among its workers unless threads are set, and pins the GPU of this
    local rank. From now on the sums in every `tf.function` have one order, without which ranks drift apart.

    Args:
        comm: as in Horovod: an mpi4py communicator, a list of ranks, or None for all ranks.
        process_sets: as in Horovod: a list of `ProcessSet`, or "dynamic".

    Raises:
        UsageError: if a launcher announces another world than Horovod finds, or if this machine has fewer GPUs than
            workers.
    """
    join_world(comm, process_sets)
    _take_share_once(horovod.local_rank(), horovod.local_size())


_take_share_once = functools.cache(take_share)  # programs may call `init` again, also after TensorFlow has computed


def join_world(comm: Any = None, process_sets: Any = None) -> None:
    """The same for a process that has computed before: its device and threads stay as they are."""

    def start() -> None:
        horovod.init(comm, process_sets)

    if comm is None:
        join_as_script("tensorflow", start, process_sets)
    else:
        join_part_as_script("tensorflow", start)


def require_init(wanted: str) -> None:
    """Raise a `UsageError` if `init` has not been called; `wanted` is what the user called instead."""
    require_joined(horovod, wanted)
