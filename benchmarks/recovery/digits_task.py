"""hvdtrain's digits, which tell when each update is done: at the begin of the next one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.recovery.step_times import StepTimes
from hvdtrain.tasks.torch import TorchDigits


class TimedDigits(TorchDigits):
    """As the built-in task."""

    _times: StepTimes | None = None
    _steps = 0

    def measure(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._times is None:
            self._times = StepTimes()
        if model.training and self._steps:
            self._times.note()
        self._steps += 1
        return super().measure(model, batch)
