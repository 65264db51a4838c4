"""What user code may do to a torch model in training, on every rank: `user_code_torch.py`. See test_user_code.py."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch import nn

from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.update import Update
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import detect_topology

SIZES: Final = (5, 3, 600)
USERS: Final = [[(0, 1), (0,), ()], [(), (1,), (0, 1)], [(), (0, 1), ()], [(1,), (), (0,)]]
"""In each step, for each parameter, the ranks whose loss uses it."""

EXCHANGES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "one bucket each": {"bucket_cap_mb": 0.00001},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
    "sum": {"reduce_op": "sum"},
    "adasum": {"reduce_op": "adasum"},
    "shard optimizer": {"shard": "optimizer"},
    "shard gradients": {"shard": "gradients", "bucket_cap_mb": 0.00001},
}


class Weights(nn.Module):
    """Ones, of each of SIZES."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in SIZES])


def gradient(step: int, number: int, rank: int) -> torch.Tensor:
    """Whose first number is -0.0, on the first of two ranks in odd steps."""
    values = torch.arange(SIZES[number], dtype=torch.float32) + 1 + step + rank
    values[0] = -0.0 if (step + rank) % 2 else 1.0
    return values / 8


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)


def exchanged(comm: Communicator, options: TrainingOptions) -> list[torch.Tensor]:
    """The weights after all steps, each rank with gradients of its own."""
    model = Weights()
    optimizer = optimizer_of(model)
    sync = open_gradient_sync(model, optimizer, comm.topology, options)
    update = Update(optimizer, sync.updated(list(model.parameters())), total_norm=sync.total_norm)
    for step, users in enumerate(USERS):
        sync.set_grad_sync(True)
        for number, parameter in enumerate(model.all):
            if comm.topology.rank in users[number]:
                parameter.backward(gradient(step, number, comm.topology.rank) * sync.loss_multiplier)
        sync.finish()
        update.step()
        sync.after_update(step)
        sync.clear()
    return [parameter.detach() for parameter in model.all]


def alone() -> list[torch.Tensor]:
    """The same by torch itself, with all ranks' gradients in one process."""
    model = Weights()
    optimizer = optimizer_of(model)
    for step, users in enumerate(USERS):
        optimizer.zero_grad()
        for number, parameter in enumerate(model.all):
            for rank in users[number]:
                parameter.backward(gradient(step, number, rank))
        optimizer.step()
    return [parameter.detach() for parameter in model.all]


def check_unused(comm: Communicator) -> None:
    """Every exchange leaves a parameter alone in a step in which no rank uses it, and no other one."""
    expected = alone()
    for name, options in EXCHANGES.items():
        weights = exchanged(comm, TrainingOptions(**options))
        for number, (ours, theirs) in enumerate(zip(weights, expected, strict=True)):
            # Adam's step is nearly the same for a gradient of any size; where it is not made, weights differ by 0.1.
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0.04, msg=lambda m, n=number, c=name: f"{c} {n}: {m}")
        on_all = gather_json(comm, [ours.tolist() for ours in weights], "test.weights")
        assert all(other == on_all[0] for other in on_all), name


if __name__ == "__main__":
    torch.set_num_threads(1)
    communicator = open_communicator("torch", detect_topology(os.environ), 60)
    check_unused(communicator)
    communicator.close()
    print(f"rank {communicator.topology.rank} is done", flush=True)
