"""Gradients as they are, summed in place by one allreduce a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.comm_hooks.interface import GradBucket, PendingReduction, StartSum


@final
class PlainSum(Stateless):
    """Implements `CommHook`.

    Args:
        start_sum: the allreduce.
        loss_multiplier: see `CommHook`.
    """

    def __init__(self, start_sum: StartSum, loss_multiplier: float = 1.0) -> None:
        super().__init__(loss_multiplier)
        self._start_sum = start_sum

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        def reduction() -> PendingReduction:
            yield self._start_sum(bucket.flat, bucket.name)

        return reduction
