"""The state that is saved, and what it is to save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

_TENSOR_ELEMENTS: Final = 250_000  # 1 MB

IsDurable = Callable[[], bool]
Save = Callable[[int], IsDurable]
"""Begins to save after that many updates; what it returns says whether the checkpoint is complete."""


class Bag(nn.Module):
    """Weights of a total size, half of the state; their gradients are never made."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        count = max(1, megabytes // 2)
        self.weights = nn.ParameterList(torch.randn(_TENSOR_ELEMENTS) for _ in range(count))


def optimizer_of(model: Bag) -> torch.optim.Optimizer:
    """SGD whose momentum is there, as large as the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for weight in model.parameters():
        optimizer.state[weight]["momentum_buffer"] = torch.randn_like(weight)
    return optimizer
