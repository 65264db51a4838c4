"""Sums of measures over samples in torch, on the device that measured them."""

from collections.abc import Mapping
from typing import Final

import torch

from hvdtrain.adapters.adapter_protocol import MeasureTotals

BATCHES_TOGETHER: Final = 16  # batches: bounds the memory that values of measures take


class MeasureSums:
    """Sums of measures over samples. It waits for the device only where `read` is called.

    Samples' values are put aside, and added up when there are those of several batches: a sum in float64 of each
    measure at each step costs as much as a small layer.

    Args: `together`: batches that are added up at once. With 1 the sums do not depend on where readings are.
    """

    def __init__(self, together: int = BATCHES_TOGETHER) -> None:
        self._together = together
        self._values: dict[str, list[torch.Tensor]] = {}
        self._totals: dict[str, torch.Tensor] = {}
        self._samples: dict[str, float] = {}

    def add(self, measures: Mapping[str, torch.Tensor], weights: torch.Tensor | None, count: int) -> None:
        """Add a batch.

        Args:
            measures: values [n] of n samples, by name.
            weights: float32[n], 0 or 1; None where all count.
        """
        for name, value in measures.items():
            self._samples[name] = self._samples.get(name, 0.0) + count
            flat = value.detach().reshape(-1)
            if not flat.is_floating_point():
                flat = flat.double()  # exact beside values of other batches
            # A copy: what the task has returned may be a part of something large, or be overwritten by its next step.
            values = self._values.setdefault(name, [])
            values.append(flat.clone() if weights is None else flat * weights.to(flat.dtype))
            if len(values) == self._together:
                self._total(name)

    def begin(self, before: MeasureTotals) -> None:
        """The next reading is about these, too, which are of earlier updates."""
        self._totals = {name: torch.tensor(total, dtype=torch.float64) for name, total in before.values.items()}
        self._samples = dict(before.samples)

    def read(self) -> MeasureTotals:
        for name in [name for name, values in self._values.items() if values]:
            self._total(name)
        totals, self._totals = self._totals, {}
        samples, self._samples = self._samples, {}
        return MeasureTotals({name: float(total) for name, total in totals.items()}, samples)

    def _total(self, name: str) -> None:
        total = torch.cat(self._values[name]).sum(dtype=torch.float64)
        self._values[name] = []
        self._totals[name] = self._totals[name] + total if name in self._totals else total
