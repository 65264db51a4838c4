"""What one writes by hand for horovodrun: the digits' CNN with Horovod's own optimizer, two steps."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.startup.first_step import record_first_step
from benchmarks.startup.network import cnn


def main() -> None:
    """Train two steps."""
    hvd.init()
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler: DistributedSampler[object] = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for step, (x, y) in enumerate(loader):
        if step == 1:
            record_first_step(hvd.rank())
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 1:
            break
    hvd.shutdown()


if __name__ == "__main__":
    main()
