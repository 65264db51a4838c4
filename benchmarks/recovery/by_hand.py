"""What scripts by hand share: the data, and a checkpoint every few steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS_BETWEEN = 10
"""Updates between two checkpoints, or commits, in every arm."""

EPOCHS = 2000


def batches(size: int, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of one worker, for all epochs; together the workers have 48 records in a step, as hvdtrain's digits."""
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler: DistributedSampler[object] = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=48 // size, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield from loader


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write a checkpoint whole, or not at all."""
    new = folder / "checkpoint.new"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, new)
    os.replace(new, folder / "checkpoint")


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """From the checkpoint, if there is one."""
    if (folder / "checkpoint").exists():
        state = torch.load(folder / "checkpoint", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def folder() -> Path:
    """For checkpoints: the script's only argument."""
    return Path(sys.argv[1])
