"""A model that torch.fx cannot follow, as its forward() looks at values: the task lists its stages itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hvdtrain.tasks.torch import TorchDigits


class Branching(nn.Module):
    """[n, 1, 8, 8] → [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 48, 32, 10]
        layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(sizes, sizes[1:], strict=False)]
        self.layers = nn.ModuleList([nn.Flatten(), *layers])

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = pictures
        for layer in self.layers:
            if not torch.isfinite(features).all():
                raise ValueError("something is not finite")
            features = layer(features)
        return features


class Listed(TorchDigits):
    """Its layers are the links of the chain."""

    def build_model(self) -> nn.Module:
        return Branching()

    def stages(self, model: nn.Module) -> Sequence[nn.Module]:
        return list(model.layers)
