"""hvdtrain's digits, which tell when the first step is done: at the begin of the second one, after the first update."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from benchmarks.startup.first_step import record_first_step
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import detect_topology


class TimedDigits(TorchDigits):
    """As the built-in task."""

    _steps = 0

    def measure(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._steps == 1:
            record_first_step(detect_topology(os.environ).rank)
        self._steps += 1
        return super().measure(model, batch)
