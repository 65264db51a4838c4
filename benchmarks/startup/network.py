"""The CNN that hvdtrain's digits train, written out for the hand-written scripts."""

from __future__ import annotations

from torch import nn


def cnn(width: int = 32) -> nn.Module:
    """8 × 8 pixels → 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
