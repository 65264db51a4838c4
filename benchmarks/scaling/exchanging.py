"""The least that can be written by hand: each process trains by itself, and mpi4py sums its gradients' bytes after each
backward pass. Nothing overlaps, nothing is copied, and the sums are not used.
"""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI
from torch.nn import functional

from benchmarks.step import hand_protocol, networks_torch
from benchmarks.step.workload import LR, SEED


def main() -> None:
    """Train on one batch."""
    options, world = hand_protocol.parse(), MPI.COMM_WORLD
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = networks_torch.build(options.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    sums = np.zeros(sum(parameter.numel() for parameter in model.parameters()), np.float32)
    x, y = networks_torch.own_batch(options.model, world.rank, world.size)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        world.Allreduce(MPI.IN_PLACE, sums)
        optimizer.step()
        return loss.detach()

    hand_protocol.run(options, step, float, lambda own: world.allreduce(own) / world.size, world.rank)


if __name__ == "__main__":
    main()
