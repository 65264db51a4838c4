"""Parameters that no rank's loss has used in an update, known on all ranks without a further message.

A rank whose loss has not used a parameter sends -0.0 for all of its numbers; one that has a gradient never sends -0.0
for the first one, but 0.0 for it. The sum of x and -0.0 is x, and that of 0.0 and -0.0 is 0.0: the first number of the
sum is -0.0 only where no rank had a gradient. Only ranks without a gradient have to look at it, so that in all other
steps nobody waits for the device.
"""

import math
from collections.abc import Sequence

import torch


class UsageMarks:
    """Of the parameters in one bucket.

    Args:
        places: for each parameter where its first number is in the bucket; and where other parts of it begin, if each
            is looked at by itself. Empty: there are no marks.

    Attributes:
        missing: the parameters, by their numbers, that have no gradient on this rank in this update.
    """

    def __init__(self, places: Sequence[Sequence[int]] = ()) -> None:
        self._places = places
        self._all: torch.Tensor | None = None
        self._zeros = torch.empty(0)
        self.missing: Sequence[int] = ()

    def put_into(self, sent: torch.Tensor) -> None:
        """Mark what is sent, [numbers of the bucket or more], after any rounding."""
        if not self._places or not sent.is_floating_point():
            return
        if self._all is None or self._zeros.dtype != sent.dtype:
            self._all = torch.tensor([place for places in self._places for place in places], device=sent.device)
            self._zeros = sent.new_zeros(len(self._all))
        if len(self._all):
            sent.index_add_(0, self._all, self._zeros)
        for number in self.missing:
            for place in self._places[number]:
                sent[place] = -0.0

    def unused(self, reduced: torch.Tensor) -> list[int]:
        """Those of `missing` that are missing on all ranks, given the sums, [numbers of the bucket]."""
        firsts = [(number, self._places[number][0]) for number in self.missing if self._places[number]]
        if not (firsts and reduced.is_floating_point()):
            return []
        values = reduced[[place for _, place in firsts]].tolist()
        return [number for (number, _), value in zip(firsts, values, strict=True) if is_mark(value)]


def is_mark(value: float) -> bool:
    """Whether a sum is -0.0."""
    return value == 0 and math.copysign(1, value) < 0
