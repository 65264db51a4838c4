"""What user code may do to a torch model in training, on every rank: `user_code_torch.py`. See test_user_code.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from linear_training import LR, WIDTH, NoData, batch_of, done, said_of_changes
from torch import nn

from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.update import Update
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.state_sync import assert_equal_weights, average_rank_local_state
from hvdtrain.run.start import open_adapter
from hvdtrain.topology import Topology, detect_topology

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


class Head(NoData):
    """Only the last layer is trained at first."""

    framework = "torch"

    def build_model(self) -> Any:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 1))
        self.model[0].requires_grad_(False)
        return self.model

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch["x"])[:, 0] - batch["y"]).square()}


JOINED: Final[dict[str, dict[str, Any]]] = {
    "plain": {"ema_decay": 0.9, "max_grad_norm": 0.5},
    "accumulated": {"accumulate_steps": 2, "optimizer": "adamw", "bucket_cap_mb": 0.00001},
    "local SGD": {"sync_every": 1, "optimizer": "sgd"},
    "bf16": {"compression": "bf16"},
}
FIXED: Final[dict[str, dict[str, Any]]] = {
    "--shard": {"shard": "optimizer"},
    "--compression powersgd": {"compression": "powersgd"},
    "--gradient-sync horovod": {"gradient_sync": "horovod"},
}


def trained(comm: Communicator, ranks: list[int], size: int, options: TrainingOptions) -> dict[str, Any]:
    """The state after four steps, of which the last two train the first layer too."""
    task = Head()
    adapter = open_adapter(task, comm.topology, 1, LR, options)
    for step in range(4):
        if step == 2:
            task.model[0].requires_grad_(True)
            adapter.take_changes(comm)
        adapter.train_step(batch_of(size, step, ranks), step, LR)
    average_rank_local_state(comm, adapter)
    return adapter.state()


def check_unfrozen(comm: Communicator) -> None:
    """What is unfrozen between epochs is trained by all ranks together, as by one process."""
    rank, size = comm.topology.rank, comm.topology.size
    for name, options in JOINED.items():
        ours = trained(comm, [rank], size, TrainingOptions(**options))
        assert_equal_weights(comm, ours, name)
        alone = {key: value for key, value in options.items() if key not in ("sync_every", "compression")}
        single = SerialCommunicator(Topology.single())
        theirs = trained(single, [*range(size)], size, TrainingOptions(**alone))
        assert ours.keys() == theirs.keys(), name
        for key, array in theirs.items():
            np.testing.assert_allclose(ours[key], array, rtol=2e-2, atol=2e-3, err_msg=f"{name} {key}")


def refusal(comm: Communicator, change: Callable[[Head], object], **options: Any) -> str:
    """What `take_changes` says on this rank, after user code has done something on it."""
    task = Head()
    adapter = open_adapter(task, comm.topology, 1, LR, TrainingOptions(**options))
    adapter.train_step(batch_of(comm.topology.size, 0, [comm.topology.rank]), 0, LR)
    change(task)
    return said_of_changes(adapter, comm)


def check_refused(comm: Communicator) -> None:
    """On all ranks together, also where only one of them has changed something."""
    last = comm.topology.rank == comm.topology.size - 1
    for option, options in FIXED.items():
        facts = [refusal(comm, lambda task: task.model[0].requires_grad_(True), **options)]
        assert facts == ["User code has unfrozen '0.weight', '0.bias' during training."], (option, facts)
    fact = refusal(comm, lambda task: task.model[0].requires_grad_(last))
    assert fact == f"Rank {comm.topology.size - 1} trains '0.bias', '0.weight', and rank 0 does not.", fact
    fact = refusal(comm, lambda task: task.model[2].requires_grad_(not last))
    assert fact == f"Rank 0 trains '2.bias', '2.weight', and rank {comm.topology.size - 1} does not.", fact
    fact = refusal(comm, lambda task: last and task.model.double())
    assert fact.startswith(f"On rank {comm.topology.size - 1}: User code has changed the dtype"), fact
    assert refusal(comm, lambda _: None) == "nothing"


if __name__ == "__main__":
    torch.set_num_threads(1)
    communicator = open_communicator("torch", detect_topology(os.environ), 60)
    check_unused(communicator)
    check_unfrozen(communicator)
    check_refused(communicator)
    communicator.close()
    done(communicator.topology.rank)
