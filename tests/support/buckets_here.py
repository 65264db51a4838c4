"""Buckets of a model, summed over ranks that all have the same samples: the sum multiplies, in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.torch.comm_hooks import PlainSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients


class SameOnAllRanks:
    """Sums over `ranks` equal ranks; keeps what was asked of it."""

    def __init__(self, ranks: int = 1) -> None:
        self.ranks = ranks
        self.started: list[tuple[str, int]] = []
        self.waited: list[str] = []

    def start(self, flat: torch.Tensor, name: str) -> str:
        self.started.append((name, flat.numel()))
        flat.mul_(self.ranks)
        return name

    def wait(self, handle: str) -> None:
        self.waited.append(handle)


def buckets_of(model: nn.Module, ranks: SameOnAllRanks, bucket_bytes: int = 10**6) -> SummedGradients:
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return SummedGradients(trainable, PlainSum(ranks.start), ranks.wait, bucket_bytes)


def layers(*widths: int) -> Any:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


def assert_gradients(model: nn.Module, plain: nn.Module, factor: float = 1.0) -> None:
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        expected = None if theirs.grad is None else theirs.grad * factor
        torch.testing.assert_close(ours.grad, expected, rtol=1e-6, atol=1e-7)
