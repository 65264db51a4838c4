"""Gradients as they are, summed in place by one allreduce a parcel."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hvdtrain.adapters.stateless import Stateless
from hvdtrain.adapters.torch.wires.interface import Journey, Parcel, StartSum


@final
class PlainSum(Stateless):
    """Implements `Wire`.

    Args:
        start_sum: the allreduce.
        share_factor: see `Wire`.
    """

    def __init__(self, start_sum: StartSum, share_factor: float = 1.0) -> None:
        super().__init__(share_factor)
        self._start_sum = start_sum

    def open(self, parcel: Parcel) -> Callable[[], Journey]:
        def journey() -> Journey:
            yield self._start_sum(parcel.flat, parcel.name)

        return journey
