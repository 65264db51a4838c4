"""Where Horovod 0.28.1 can combine gradients by Adasum. Serves both frameworks: each gives its own Horovod module."""

from __future__ import annotations

from typing import Any

from hvdtrain.errors import UsageError


def require_adasum(hvd: Any, on_gpu: bool) -> None:
    """Raise `UsageError` where Adasum would fail at the first update.

    It halves a vector between pairs of workers, so that their number must be a power of two; with NCCL, gradients are
    averaged within a node first, and the nodes' number must be one. Gloo has no Adasum.

    Args:
        hvd: horovod.torch or horovod.tensorflow, initialized.
        on_gpu: whether gradients are on a GPU.
    """
    if not hvd.mpi_enabled():
        raise UsageError(
            "--reduce-op adasum is given, and Horovod runs over Gloo.",
            "Horovod combines gradients by Adasum over MPI only.",
            "start the job with mpirun, or with horovodrun --mpi.",
        )
    by_node = on_gpu and hvd.nccl_built()
    count, what = (hvd.size() // hvd.local_size(), "nodes") if by_node else (hvd.size(), "workers")
    if count & (count - 1):
        raise UsageError(
            f"--reduce-op adasum is given for {count} {what}.",
            "Horovod combines gradients by Adasum in pairs, and pairs of pairs.",
            f"start 2, 4, 8 … {what}.",
        )
