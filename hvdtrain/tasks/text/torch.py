"""Text in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.models.torch.transformer import Transformer
from hvdtrain.tasks.text.data import NOTHING, SYMBOLS, Text


class TorchText(Text):
    """A transformer, trained by AdamW."""

    framework: ClassVar[str] = "torch"

    def build_model(self) -> nn.Module:
        return Transformer(SYMBOLS, self.context, self.width, self.heads, self.blocks)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """ "loss": nats a byte; "accuracy": share of bytes that the model would have guessed."""
        logits, following = model(batch["seen"]), batch["next"]
        count = (following != NOTHING).sum(1)
        losses = functional.cross_entropy(logits.transpose(1, 2), following, ignore_index=NOTHING, reduction="none")
        right = (logits.argmax(2) == following).sum(1)  # never where there is nothing to predict
        return {"loss": losses.sum(1) / count, "accuracy": right / count}
