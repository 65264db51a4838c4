"""The digits by a torch model with dropout and BatchNorm, for which it matters how records are divided.

A buffer with persistent=False is read by each pass, and the optimizer draws random numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hvdtrain.tasks.digits import CLASSES, SIDE
from hvdtrain.tasks.torch import TorchDigits

CHANNELS = 8


class Centred(nn.Module):
    """Subtracts the mean of earlier pictures, of which no state_dict knows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("earlier", torch.zeros(SIDE, SIDE), persistent=False)
        self.register_buffer("constant", torch.arange(4), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        centred = images - self.earlier
        if self.training:
            self.earlier.lerp_(images.detach().mean((0, 1)), 0.2)
        return centred


class Noisy(torch.optim.SGD):
    """Adds noise to each gradient, as for privacy."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad += 1e-3 * torch.randn_like(parameter)
        return super().step(closure)


class Unequal(TorchDigits):
    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Sequential(Centred(), nn.Conv2d(1, CHANNELS, 3, padding=1)),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(CHANNELS * SIDE * SIDE, CLASSES),
        )
        model.register_buffer("frozen", torch.arange(3.0))
        model.register_buffer("also_the_bias", model.get_submodule("5").bias.detach())
        return model

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return Noisy(model.parameters(), lr, momentum=0.9)
