"""The digits in PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.tasks.digits.data import CLASSES, SIDE, Digits


class TorchDigits(Digits):
    """A small CNN."""

    framework: ClassVar[str] = "torch"

    def build_model(self) -> nn.Module:
        width = self.width
        layers = {  # named as the Keras model's
            "conv1": nn.Conv2d(1, width, 3, padding=1),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(width, 2 * width, 3, padding=1),
            "relu2": nn.ReLU(),
            "pool": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "hidden": nn.Linear(2 * width * (SIDE // 2) ** 2, 128),
            "relu3": nn.ReLU(),
            "logits": nn.Linear(128, CLASSES),
        }
        return nn.Sequential(OrderedDict(layers))

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = model(batch["image"].permute(0, 3, 1, 2))
        loss = functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}
