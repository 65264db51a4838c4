"""Weights of a plan's slots for map-style data sets that know nothing of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from torch.utils.data import Dataset

from data_sharding.adapters.steps import StepSlots


@final
class WithWeights(Dataset[tuple[Any, np.float32]]):
    """Any map-style data set, each item paired with its slot's weight: `DataLoader` gives (batch of items, float32[k]).

    A `ShardBatchSampler` fills the last step with masked slots, which repeat records: multiply the per-record losses by
    the weights, and divide their sum over all ranks by the sum of all weights. What other samplers choose has weight 1.

    Args:
        data: item i belongs to record id i of the plan.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Any, np.float32]:
        return self._data[index], np.float32(1)

    def __getitems__(self, slots: Sequence[int]) -> list[tuple[Any, np.float32]]:
        """The items of a batch, of `StepSlots` or any indices."""
        chosen = slots if isinstance(slots, StepSlots) else StepSlots.of_ids(slots)
        indices: list[int] = chosen.ids.tolist()
        at_once = getattr(self._data, "__getitems__", None)
        items = at_once(indices) if at_once else [self._data[index] for index in indices]
        return list(zip(items, chosen.weights, strict=True))
