"""Horovod's allreduce of torch tensors, in place, as gradients go: for measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import horovod.torch as hvd
import torch


@final
class TorchAllreduce:
    """Implements `hvdtrain.doctor.allreduce.Prepared`: on this worker's GPU where it has one, else on the CPU."""

    def __init__(self) -> None:
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.kind = "nccl" if on_gpu and hvd.nccl_built() else "mpi" if _uses_mpi() else "gloo"

    def prepare(self, elements: int) -> Callable[[], None]:
        """A function that sums a float32 tensor of so many elements over all ranks, and returns when that is done."""
        tensor = torch.zeros(elements, dtype=torch.float32, device=self.device)
        name = f"hvdtrain.bench.{elements}"

        def run() -> None:
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)
            if tensor.is_cuda:
                torch.cuda.synchronize()

        return run


def _uses_mpi() -> bool:
    return bool(hvd.mpi_enabled())
