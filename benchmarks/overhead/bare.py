"""What one writes by hand: `python -m benchmarks.overhead.bare tensors|loader`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.overhead.problem import BATCH, Clock, model, optimizer_of, tensors, timed


def batches(kind: str) -> Iterable[Any]:
    """Slices of two tensors in order, or torch's DataLoader, shuffled, in this process."""
    x, y = tensors()
    if kind == "tensors":
        return zip(x.split(BATCH), y.split(BATCH), strict=True)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def main() -> None:
    """Train, and print the time."""
    torch.set_num_threads(1)
    network = model()
    optimizer = optimizer_of(network)
    for x, y in timed(batches(sys.argv[1]), Clock()):
        optimizer.zero_grad()
        functional.mse_loss(network(x)[:, 0], y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
