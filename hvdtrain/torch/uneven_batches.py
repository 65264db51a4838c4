"""Which ranks still have batches, in `DistributedDataParallel.join()`."""

import torch
from horovod.torch import mpi_ops

from hvdtrain.errors import HvdtrainError
from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.compilation import not_compiled


class UnevenBatchesError(HvdtrainError, RuntimeError):
    """Some ranks have no more batches, and `join` was told that this is an error. Raised on all ranks."""


def active_ranks(is_active: bool = True) -> list[bool]:
    """Of each rank, whether it is active; who has called Horovod's `join` is not. Collective."""
    active = torch.zeros(mpi_ops.size(), dtype=torch.int32)
    active[mpi_ops.rank()] = int(is_active)
    bounded(mpi_ops.allreduce_)(active, op=mpi_ops.Sum, name="hvdtrain.join.active")
    return [bool(count) for count in active.tolist()]


@not_compiled
def require_even(has_batch: bool) -> None:
    """Raise `UnevenBatchesError` where some ranks have a batch and others have none. Collective."""
    ended = [rank for rank, is_active in enumerate(active_ranks(has_batch)) if not is_active]
    if 0 < len(ended) < mpi_ops.size():
        raise UnevenBatchesError(
            f"Rank {', '.join(map(str, ended))} has no more batches, and other ranks have some.",
            "join() was called with throw_on_early_termination=True.",
            "give all ranks equally many batches, or leave this argument out.",
        ).on_all_ranks()
