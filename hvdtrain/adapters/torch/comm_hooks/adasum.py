"""Gradients combined by Adasum, parameter by parameter (Maleki et al. 2020, arXiv:2006.02924)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.comm_hooks.interface import GradBucket, PendingReduction


@final
class Adasum(Stateless):
    """Implements `CommHook`. For gradients a and b of one parameter, (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b.

    Equal ones leave as they came, orthogonal ones are added. Each rank brings its own mean gradient.

    Args:
        hvd: horovod.torch.
    """

    def __init__(self, hvd: Any) -> None:
        super().__init__(loss_multiplier=hvd.size())
        self._hvd = hvd

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        # Horovod weighs each tensor of a group apart, in one message.
        numbers = [view.numel() for _, view in bucket.views]
        parts = [part for part in torch.split(bucket.flat, numbers) if part.numel()]

        def reduction() -> PendingReduction:
            yield self._hvd.grouped_allreduce_async_(parts, name=bucket.name, op=self._hvd.Adasum)

        return reduction
