"""What one writes by hand for `torchrun --max-restarts`: the digits' CNN under DDP, with checkpoints."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.recovery import by_hand
from benchmarks.recovery.step_times import StepTimes
from benchmarks.startup.network import cnn


def main() -> None:
    """Train, from the last checkpoint."""
    distributed.init_process_group("gloo")
    rank, times, folder = distributed.get_rank(), StepTimes(), by_hand.folder()
    inner = cnn()
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.003)
    by_hand.restore(inner, optimizer, folder)
    model: nn.Module = DistributedDataParallel(inner)
    for step, (x, y) in enumerate(by_hand.batches(distributed.get_world_size(), rank)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.note()
        if rank == 0 and step % by_hand.STEPS_BETWEEN == 0:
            by_hand.save(inner, optimizer, folder)


if __name__ == "__main__":
    main()
