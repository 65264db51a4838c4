"""Gradients sent as float16: half of the bytes, 11 bits of each number, and a narrow range."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.wires.interface import Journey, Parcel, StartSum
from hvdtrain.adapters.torch.wires.plain import PlainSum


@final
class Float16Sum(Stateless):
    """Implements `Wire`.

    What travels is each rank's part of the mean over the global batch, whatever the share factor, so that only a mean
    beyond 65,504 overflows. Then the sum is infinite, or not a number, on all ranks alike: --precision fp16 leaves
    that update out and lowers its loss scale, and without it training ends at the loss that follows. Parts below 6e-8
    become 0.

    Args:
        start_sum: an allreduce of float16.
        share_factor: see `Wire`; a power of two loses nothing.
    """

    def __init__(self, start_sum: StartSum, share_factor: float = 1.0) -> None:
        super().__init__(share_factor)
        self._start_sum = start_sum

    def open(self, parcel: Parcel) -> Callable[[], Journey]:
        flat = parcel.flat
        if flat.element_size() <= 2:
            return PlainSum(self._start_sum, self.share_factor).open(parcel)
        sent = torch.empty_like(flat, dtype=torch.float16)

        def journey() -> Journey:
            sent.copy_(_scaled(flat, 1 / self.share_factor))
            yield self._start_sum(sent, parcel.name)
            _scaled(flat.copy_(sent), self.share_factor)

        return journey


def _scaled(flat: torch.Tensor, factor: float) -> torch.Tensor:
    return flat if factor == 1 else flat.mul_(factor)
