"""The digits by a torch model with dropout and BatchNorm, for which it matters how records are divided."""

from __future__ import annotations

import torch
from torch import nn

from hvdtrain.tasks.digits import CLASSES, SIDE
from hvdtrain.tasks.torch import TorchDigits

CHANNELS = 8


class Unequal(TorchDigits):
    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(CHANNELS * SIDE * SIDE, CLASSES),
        )
        model.register_buffer("frozen", torch.arange(3.0))
        model.register_buffer("also_the_bias", model.get_submodule("5").bias.detach())
        return model
