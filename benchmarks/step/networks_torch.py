"""The networks in torch."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.step.workload import CLASSES, IMAGENET_SIDE, LAYERS, WIDTH, inputs, labels, own_ids
from hvdtrain.models.torch import zoo


def build(name: str) -> nn.Module:
    """A network with fresh weights, for channels-first pictures."""
    if name in ("resnet18", "resnet50"):
        return zoo.build_model(name, CLASSES, IMAGENET_SIDE)
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    layers = [layer for _ in range(LAYERS - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def own_batch(name: str, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The records on which a hand-written worker trains, pictures channels first, and their labels."""
    ids = own_ids(name, rank, size)
    x = torch.from_numpy(inputs(name, ids))
    return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x, torch.from_numpy(labels(ids))
