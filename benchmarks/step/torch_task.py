"""hvdtrain's task in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from benchmarks.step import networks_torch
from benchmarks.step.tasks_common import StepTask


class TorchStep(StepTask):
    """As the hand-written arms: the same network, cross entropy, plain SGD."""

    framework = "torch"

    def build_model(self) -> nn.Module:
        return networks_torch.build(self.model)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = batch["x"]
        logits = model(x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x)
        return {"loss": functional.cross_entropy(logits, batch["y"], reduction="none")}


class OnGpu(TorchStep):
    """With torch's fused optimizer; pictures stay as they are decoded, which is channels last."""

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr, fused=True)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = batch["x"]
        logits = model(x.permute(0, 3, 1, 2) if x.ndim == 4 else x)
        return {"loss": functional.cross_entropy(logits, batch["y"], reduction="none")}
