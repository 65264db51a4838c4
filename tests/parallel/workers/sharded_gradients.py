"""Two updates with shards, whose weights must be those of two updates without: `sharded_gradients.py`, on each rank.

Prints JSON for each optimizer: for each kind of shards the largest difference of any weight, how many bytes of whole
gradients are there after the backward pass, the bytes of the optimizer's state, and these without shards.
"""

from __future__ import annotations

import json
import os

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology, detect_topology

MICRO_BATCHES, UPDATES, LAYERS, WIDTH = 3, 2, 10, 520


class Network(nn.Module):
    """Weights of more than 1 MiB, which are buckets by themselves, and small ones, which not all passes use.

    `first` and `last` are in the last and in the first bucket; only some ranks use `last`, and only some passes.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Parameter(torch.ones(7))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.last = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, uses_last: bool) -> torch.Tensor:
        """`x`: [n, WIDTH]; returns [n, WIDTH]."""
        for layer in self.layers:
            x = functional.relu(layer(x)) + x
        return x * self.last.mean() if uses_last else x


def train(model: nn.Module, sync: GradientSync, update: Update, rank: int) -> int:
    """Bytes of whole gradients of large weights after the last backward pass, before the messages are waited for."""
    kept = 0
    for step in range(UPDATES):
        for micro in range(MICRO_BATCHES):
            torch.manual_seed(100 * step + 10 * micro + rank)
            sync.set_grad_sync(micro + 1 == MICRO_BATCHES)
            outputs = model(torch.randn(8, WIDTH), uses_last=micro > 0 and rank != 1)
            functional.cross_entropy(outputs, torch.randint(3, (8,))).backward()
        kept = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None and p.nbytes >= 2**20)
        sync.finish()
        update.step()
        sync.after_update(step)
        sync.clear()
    return kept


def main() -> None:
    """See the module."""
    import horovod.torch as hvd

    hvd.init()
    topology = detect_topology(os.environ)
    for kind in (torch.optim.Adam, torch.optim.Adagrad):
        print(json.dumps({"rank": hvd.rank(), "of": kind.__name__, **with_shards(kind, topology)}), flush=True)
    hvd.shutdown()


def with_shards(kind: type[torch.optim.Optimizer], topology: Topology) -> dict[str, object]:
    """By the name of what is sharded. Adagrad has its state before it is sharded, and is given some that differs."""
    found: dict[str, object] = {}
    weights: dict[str, list[torch.Tensor]] = {}
    for shard in ("none", "optimizer", "gradients"):
        model = Network()
        optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        for state in optimizer.state.values():
            state["sum"] += torch.arange(state["sum"].numel()).view_as(state["sum"]) / 1e5 + 0.1
        options = TrainingOptions(shard=shard, bucket_cap_mb=0.01)  # type: ignore[arg-type]
        sync = open_gradient_sync(model, optimizer, topology, options)
        update = Update(optimizer, sync.updated(list(model.parameters())), Clipping(0.5), total_norm=sync.total_norm)
        kept = train(model, sync, update, topology.rank)
        weights[shard] = [parameter.detach() for parameter in model.parameters()]
        furthest = max(
            float((one - other).abs().max()) for one, other in zip(weights[shard], weights["none"], strict=True)
        )
        slots = sum(slot.nbytes for own in optimizer.state.values() for slot in own.values() if slot.dim())
        found[shard] = {"furthest": furthest, "kept_gradient_bytes": kept, "state_bytes": slots}
    return found


if __name__ == "__main__":
    main()
