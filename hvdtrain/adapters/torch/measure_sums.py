"""Sums of a task's measures over samples.

Samples' values are put aside, and added up when there are those of several batches: a sum in float64 of each measure at
each step costs as much as a small layer.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch

_TOGETHER: Final = 16  # batches: bounds the memory that values take


class MeasureTotals(NamedTuple):
    """Sums of measures by their names, and over how many samples each of them goes."""

    values: dict[str, float]
    samples: dict[str, float]


class MeasureSums:
    """Adds up, and waits for the device only where `read` is called."""

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor]] = {}
        self._totals: dict[str, torch.Tensor] = {}
        self._samples: dict[str, float] = {}

    def add(self, measures: Mapping[str, torch.Tensor], weights: torch.Tensor | None, count: int) -> None:
        """Add a batch.

        Args:
            measures: values [n] of n samples, by name.
            weights: float32[n], 0 or 1; None where all count.
            count: how many do.
        """
        for name, value in measures.items():
            self._samples[name] = self._samples.get(name, 0.0) + count
            own = value.detach().reshape(-1)
            if not own.is_floating_point():
                own = own.double()  # exact beside values of other batches
            # A copy: what the task has returned may be a part of something large, or be overwritten by its next step.
            values = self._values.setdefault(name, [])
            values.append(own.clone() if weights is None else own * weights.to(own.dtype))
            if len(values) == _TOGETHER:
                self._total(name)

    def read(self) -> MeasureTotals:
        """The sums since the last reading."""
        for name in [name for name, values in self._values.items() if values]:
            self._total(name)
        totals, self._totals = self._totals, {}
        samples, self._samples = self._samples, {}
        return MeasureTotals({name: float(total) for name, total in totals.items()}, samples)

    def _total(self, name: str) -> None:
        total = torch.cat(self._values[name]).sum(dtype=torch.float64)
        self._values[name] = []
        self._totals[name] = self._totals[name] + total if name in self._totals else total
