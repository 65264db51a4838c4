"""Two updates with shards, whose weights must be those of two updates without: `sharded_gradients.py`, on each rank.

Prints JSON: for each kind of shards the largest difference of any weight, how many bytes of whole gradients are there
after the backward pass, the bytes of the optimizer's state, and these without shards.
"""

from __future__ import annotations

import json

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.adapters.torch.gradient_sync import GradientSync, summed_gradients, trainable_of
from hvdtrain.adapters.torch.sharded_sync import open_sharded_sync
from hvdtrain.adapters.torch.update import Update
from hvdtrain.config.training_options import TrainingOptions

MICRO_BATCHES, UPDATES = 2, 2


def network() -> nn.Module:
    """Weights of more than 1 MiB, which are buckets by themselves, and small ones; one of them takes no part."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(600, 500), nn.ReLU(), nn.Linear(500, 600), nn.ReLU(), nn.Linear(600, 3))
    layers.register_parameter("unused", nn.Parameter(torch.ones(7)))
    return layers


def train(model: nn.Module, sync: GradientSync, update: Update, rank: int) -> int:
    """Bytes of whole gradients of large weights after the last backward pass."""
    kept = 0
    for step in range(UPDATES):
        for micro in range(MICRO_BATCHES):
            torch.manual_seed(100 * step + 10 * micro + rank)
            sync.set_grad_sync(micro + 1 == MICRO_BATCHES)
            functional.cross_entropy(model(torch.randn(8, 600)), torch.randint(3, (8,))).backward()
        sync.finish()
        kept = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None and p.nbytes >= 2**20)
        update.step()
        sync.after_update(step)
        sync.clear()
    return kept


def main() -> None:
    """See the module."""
    import horovod.torch as hvd

    hvd.init()
    found: dict[str, object] = {}
    weights: dict[str, list[torch.Tensor]] = {}
    for shard in ("none", "optimizer", "gradients"):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        options = TrainingOptions(shard=shard, bucket_cap_mb=0.01)  # type: ignore[arg-type]
        sync: GradientSync = (
            summed_gradients(trainable_of(model), options)
            if shard == "none"
            else open_sharded_sync(model, optimizer, options)
        )
        update = Update(optimizer, sync.updated(list(model.parameters())), 0.5, total_norm=sync.total_norm)
        kept = train(model, sync, update, hvd.rank())
        weights[shard] = [parameter.detach() for parameter in model.parameters()]
        furthest = max(
            float((one - other).abs().max()) for one, other in zip(weights[shard], weights["none"], strict=True)
        )
        slots = sum(slot.nbytes for own in optimizer.state.values() for slot in own.values() if slot.dim())
        found[shard] = {"furthest": furthest, "kept_gradient_bytes": kept, "state_bytes": slots}
    print(json.dumps({"rank": hvd.rank(), **found}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
