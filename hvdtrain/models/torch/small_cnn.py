"""A small convolutional network for small pictures."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class FlattenChannelsLast(nn.Module):
    """[n, C, H, W] to [n, H·W·C], the order in which Keras flattens: so weights behind it fit both frameworks."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.permute(0, 2, 3, 1).flatten(1)


def small_cnn(side: int, channels: int, classes: int, width: int = 32) -> nn.Sequential:
    """Two 3×3 convolutions, a pooling, two dense layers: float32 [n, channels, side, side] to logits [n, classes].

    Layers with weights are named as those of `hvdtrain.models.keras.small_cnn`.
    """
    layers = {
        "conv1": nn.Conv2d(channels, width, 3, padding=1),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(width, 2 * width, 3, padding=1),
        "relu2": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": FlattenChannelsLast(),
        "hidden": nn.Linear(2 * width * (side // 2) ** 2, 128),
        "relu3": nn.ReLU(),
        "logits": nn.Linear(128, classes),
    }
    return nn.Sequential(OrderedDict(layers))
