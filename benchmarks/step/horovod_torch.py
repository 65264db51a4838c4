"""What one writes by hand with Horovod in torch; and the same with `hvdtrain.torch` imported in its place."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from benchmarks.step import hand_protocol, networks_torch
from benchmarks.step.workload import LR, SEED


def main() -> None:
    """Train on one batch."""
    options = hand_protocol.parse()
    hvd: Any = import_module("hvdtrain.torch" if options.look_alike else "horovod.torch")
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = networks_torch.build(options.model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x, y = networks_torch.own_batch(options.model, hvd.rank(), hvd.size())

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def mean(own: float) -> float:
        return float(hvd.allreduce(torch.tensor(own, dtype=torch.float64), name="loss"))

    hand_protocol.run(options, step, float, mean, hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    main()
