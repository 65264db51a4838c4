"""What one writes by hand for torchrun: DistributedDataParallel over Gloo; and the same with hvdtrain's imported."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from benchmarks.step import hand_protocol, networks_torch
from benchmarks.step.workload import LR, SEED


def main() -> None:
    """Train on one batch."""
    options = hand_protocol.parse()
    distributed: Any = import_module("hvdtrain.torch.distributed" if options.look_alike else "torch.distributed")
    wrapped: Any = import_module("hvdtrain.torch" if options.look_alike else "torch.nn.parallel")
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    network = networks_torch.build(options.model)
    model = wrapped.DistributedDataParallel(network, gradient_as_bucket_view=options.bucket_views)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = networks_torch.own_batch(options.model, rank, size)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def mean(own: float) -> float:
        total = torch.tensor(own, dtype=torch.float64)
        distributed.all_reduce(total)
        return float(total / size)

    hand_protocol.run(options, step, float, mean, rank)
    distributed.destroy_process_group()
    # The result is out. In a normal exit, a thread of Gloo that has not ended yet now and then aborts the process
    # ("terminate called without an active exception"), and torchrun calls the whole run failed.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
