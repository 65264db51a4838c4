"""Processes of torch.multiprocessing.spawn, which no launcher knows: they meet at an address, twice in one process.

Arguments: two free ports. Each rank writes that it has passed all checks.
"""

import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing
from torch import nn

import hvdtrain.torch as hvd
import hvdtrain.torch.distributed as dist


def train(rank: int) -> None:
    torch.manual_seed(rank)
    model = hvd.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = model.module.weight.detach() - 0.1 * torch.full((2, 4), 1.5)  # the mean of 1 and 2
    model(torch.full((1, 4), rank + 1.0)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.module.weight.detach(), expected)


def main(rank: int, ports: list[str]) -> None:
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{ports[0]}", world_size=2, rank=rank)
    dist.new_group([0])
    dist.new_group([0])  # stands for the same set, as long as this world lasts
    train(rank)
    dist.destroy_process_group()
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": ports[1]})
    dist.init_process_group("gloo", world_size=2, rank=rank)
    assert (dist.get_rank(), dist.get_world_size(), os.environ["MASTER_PORT"]) == (rank, 2, ports[1])
    for _ in range(2):  # the set goes with its only group, whatever stood for that of the world before
        dist.destroy_process_group(hvd.add_process_set([0]))
    train(rank)
    sys.stdout.write(f"CHECKED rank {rank} in {Path(__file__).name}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(sys.argv[1:],), nprocs=2)
