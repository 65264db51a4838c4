"""Gradients sent as bfloat16: half of the bytes, 8 bits of each number, and float32's whole range.

Horovod 0.28.1 cannot add bfloat16, and a ring that could would round every partial sum. So each rank adds up one part
of the numbers, in float32, and rounds once: an alltoall brings it all ranks' values of its part, an allgather hands
the sums out. Together they move what a ring allreduce of bfloat16 would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.comm_hooks.interface import GradBucket, PendingReduction
from hvdtrain.adapters.torch.comm_hooks.plain import PlainSum


@final
class BFloat16Sum(Stateless):
    """Implements `CommHook`. All ranks end with the same bits: each number was added up in one place.

    Args:
        hvd: horovod.torch.
        loss_multiplier: see `CommHook`.
    """

    def __init__(self, hvd: Any, loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._hvd = hvd

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        flat, ranks = bucket.flat, self._hvd.size()
        if flat.dtype == torch.float16:
            return PlainSum(self._start_sum, self.loss_multiplier).open(bucket)
        numbers = flat.numel()
        part = -(-numbers // ranks)
        sent = torch.zeros(ranks * part, dtype=torch.bfloat16, device=flat.device)  # zeros past the end stay

        def reduction() -> PendingReduction:
            sent[:numbers].copy_(flat)
            received, _ = yield self._hvd.alltoall_async(_bits(sent), name=f"{bucket.name}.parts")
            total = received.view(torch.bfloat16).view(ranks, part).sum(0, dtype=torch.float32)
            sums = yield self._hvd.allgather_async(_bits(total.to(torch.bfloat16)), name=f"{bucket.name}.sums")
            flat.copy_(sums.view(torch.bfloat16)[:numbers])

        return reduction

    def _start_sum(self, flat: torch.Tensor, name: str) -> Any:
        return self._hvd.allreduce_async_(flat, name=name, op=self._hvd.Sum)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As a dtype that Horovod carries."""
    return tensor.view(torch.int16)
