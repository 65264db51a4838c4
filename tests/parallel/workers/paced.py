"""The digits in torch, slowly: what trains until a test ends it leaves the processors to the tests beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import nn

from hvdtrain.tasks.torch import TorchDigits

STEP_SECONDS = 0.02


class Digits(TorchDigits):
    """At most fifty steps a second."""

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if model.training:
            time.sleep(STEP_SECONDS)
        return super().measure(model, batch)
