"""The digits in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.models.torch.small_cnn import small_cnn
from hvdtrain.tasks.digits.data import CLASSES, SIDE, Digits


class TorchDigits(Digits):
    """A small CNN."""

    framework: ClassVar[str] = "torch"

    def build_model(self) -> nn.Module:
        return small_cnn(SIDE, 1, CLASSES, self.width)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = model(batch["image"].permute(0, 3, 1, 2))
        loss = functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}
