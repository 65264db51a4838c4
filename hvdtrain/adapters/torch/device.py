"""This worker's share of the machine, in torch: its threads and its GPU."""

from __future__ import annotations

import os

import torch

from hvdtrain.adapters.threads import threads_per_worker
from hvdtrain.errors import UsageError


def bind_device_and_threads(local_rank: int, local_size: int) -> None:
    """Compute with 1/`local_size` of the cores unless the user chose otherwise, and on the GPU of `local_rank`.

    Raises:
        UsageError: fewer GPUs than workers.
    """
    torch.set_num_threads(threads_per_worker(local_size, os.environ))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if 1 < gpus < local_size:
        raise UsageError(
            f"{local_size} workers share this machine, which shows {gpus} GPUs.",
            "Two workers on one GPU run out of memory or wait for each other.",
            "start one worker per GPU.",
        )
    if gpus:
        # One visible GPU may be the launcher's choice for this worker (CUDA_VISIBLE_DEVICES): then it is device 0.
        torch.cuda.set_device(local_rank % gpus)


def own_device() -> torch.device:
    """Where this worker's model lives, after `bind_device_and_threads`."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
