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
from hvdtrain.adapters.torch.wires.interface import Journey, Parcel
from hvdtrain.adapters.torch.wires.plain import PlainSum


@final
class BFloat16Sum(Stateless):
    """Implements `Wire`. All ranks end with the same bits: each number was added up in one place.

    Args:
        hvd: horovod.torch.
        share_factor: see `Wire`.
    """

    def __init__(self, hvd: Any, share_factor: float = 1.0) -> None:
        super().__init__(share_factor)
        self._hvd = hvd

    def open(self, parcel: Parcel) -> Callable[[], Journey]:
        flat, ranks = parcel.flat, self._hvd.size()
        if flat.dtype == torch.float16:
            return PlainSum(self._start_sum, self.share_factor).open(parcel)
        numbers = flat.numel()
        part = -(-numbers // ranks)
        sent = torch.zeros(ranks * part, dtype=torch.bfloat16, device=flat.device)  # zeros past the end stay

        def journey() -> Journey:
            sent[:numbers].copy_(flat)
            received, _ = yield self._hvd.alltoall_async(_bits(sent), name=f"{parcel.name}.parts")
            total = received.view(torch.bfloat16).view(ranks, part).sum(0, dtype=torch.float32)
            sums = yield self._hvd.allgather_async(_bits(total.to(torch.bfloat16)), name=f"{parcel.name}.sums")
            flat.copy_(sums.view(torch.bfloat16)[:numbers])

        return journey

    def _start_sum(self, flat: torch.Tensor, name: str) -> Any:
        return self._hvd.allreduce_async_(flat, name=name, op=self._hvd.Sum)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As a dtype that Horovod carries."""
    return tensor.view(torch.int16)
