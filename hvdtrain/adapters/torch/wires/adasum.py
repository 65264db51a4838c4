"""Gradients combined by Adasum, parameter by parameter (Maleki et al. 2020, arXiv:2006.02924)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.wires.interface import Journey, Parcel


@final
class Adasum(Stateless):
    """Implements `Wire`. Of two ranks' gradients a and b of one parameter, (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b.

    Equal ones leave as they came, orthogonal ones are added. Each rank brings its own mean gradient.

    Args:
        hvd: horovod.torch.
    """

    def __init__(self, hvd: Any) -> None:
        super().__init__(share_factor=hvd.size())
        self._hvd = hvd

    def open(self, parcel: Parcel) -> Callable[[], Journey]:
        # Horovod weighs each tensor of a group apart, in one message.
        numbers = [view.numel() for _, view in parcel.views]
        parts = [part for part in torch.split(parcel.flat, numbers) if part.numel()]

        def journey() -> Journey:
            yield self._hvd.grouped_allreduce_async_(parts, name=parcel.name, op=self._hvd.Adasum)

        return journey
