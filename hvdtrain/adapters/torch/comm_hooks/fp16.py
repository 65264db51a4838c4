"""Gradients sent as float16: half of the bytes, 11 bits of each number, and a narrow range."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.comm_hooks.interface import GradBucket, PendingReduction, StartSum
from hvdtrain.adapters.torch.comm_hooks.plain import PlainSum


@final
class Float16Sum(Stateless):
    """Implements `CommHook`.

    What travels is each rank's part of the mean over the global batch, whatever the share factor, so that only a mean
    beyond 65,504 overflows. Then the sum is infinite, or not a number, on all ranks alike: --precision fp16 leaves
    that update out and lowers its loss scale, and without it training ends at the loss that follows. Parts below 6e-8
    become 0.

    Args:
        start_sum: an allreduce of float16.
        loss_multiplier: see `CommHook`; a power of two loses nothing.
    """

    def __init__(self, start_sum: StartSum, loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._start_sum = start_sum

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        flat = bucket.flat
        if flat.element_size() <= 2:
            return PlainSum(self._start_sum, self.loss_multiplier).open(bucket)
        sent = torch.empty_like(flat, dtype=torch.float16)

        def reduction() -> PendingReduction:
            sent.copy_(_scaled(flat, 1 / self.loss_multiplier))
            yield self._start_sum(sent, bucket.name)
            _scaled(flat.copy_(sent), self.loss_multiplier)

        return reduction


def _scaled(flat: torch.Tensor, factor: float) -> torch.Tensor:
    return flat if factor == 1 else flat.mul_(factor)
