"""What one writes by hand for torchrun: the digits' CNN under DistributedDataParallel, two steps."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.startup.first_step import record_first_step
from benchmarks.startup.network import cnn


def main() -> None:
    """Train two steps."""
    distributed.init_process_group("gloo")
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    data = TensorDataset(images, torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model: nn.Module = DistributedDataParallel(cnn())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step, (x, y) in enumerate(loader):
        if step == 1:
            record_first_step(distributed.get_rank())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 1:
            break
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
