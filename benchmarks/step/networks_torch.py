"""The networks in torch."""

from __future__ import annotations

from torch import nn

from benchmarks.step.workload import CLASSES, IMAGENET_SIDE, LAYERS, WIDTH
from hvdtrain.models.torch import zoo


def build(name: str) -> nn.Module:
    """A network with fresh weights, for channels-first pictures."""
    if name == "resnet18":
        return zoo.build_model("resnet18", CLASSES, IMAGENET_SIDE)
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    layers = [layer for _ in range(LAYERS - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
