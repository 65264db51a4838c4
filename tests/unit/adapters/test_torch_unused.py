"""A parameter that no rank's loss uses in a step has no gradient there, as in torch without ranks; else the sum."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks
from support.torch_training import LR, TorchRows
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters import sync_state as module
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.comm_hooks import CommHook, Float16Sum, PlainSum, StartSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology

PARAMETERS: Final = 3
HOOKS: Final[dict[str, Callable[[StartSum], CommHook]]] = {
    "plain": PlainSum,
    "float16": lambda start: Float16Sum(start, 2.0),
}


@pytest.fixture(params=[module.LARGE_BYTES, 1], ids=["shared", "alone"], scope="module", autouse=True)
def from_this_size_on_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", request.param)
        yield


def exchanged(comm: ThreadCommunicator, hook: str, cap: int, steps: list[list[tuple[float | None, ...]]]) -> list[Any]:
    """What the optimizer would see in each step of each parameter: None, or its numbers.

    Args:
        steps: of each step, of each rank, the gradient of each parameter: all of its numbers are this; None: unused.
    """
    parameters = [nn.Parameter(torch.zeros(2, 2)) for _ in range(PARAMETERS)]
    sent: dict[str, torch.Tensor] = {}

    def start(flat: torch.Tensor, name: str) -> str:
        sent[name] = flat
        return name

    def wait(name: str) -> None:
        flat = sent.pop(name)
        first, *others = comm.allgather(flat.numpy()[None], name)  # numpy's own sum begins with 0.0
        flat.copy_(torch.from_numpy(functools.reduce(np.add, others, first)))

    named = [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]
    sync = SummedGradients(named, HOOKS[hook](start), wait, cap)
    seen = []
    for step in steps:
        sync.set_grad_sync(True)
        for parameter, value in zip(parameters, step[comm.topology.rank], strict=True):
            if value is not None:
                parameter.backward(torch.full((2, 2), value))  # type: ignore[no-untyped-call]
        sync.finish()
        seen.append([None if p.grad is None else p.grad.tolist() for p in parameters])
        sync.clear()
    return seen


GRADIENT = st.sampled_from([None, -0.0, 0.0, 1.0, -1.0, -1e-9])  # the last one is -0.0 in float16


def sum_of(values: tuple[float | None, ...]) -> float | None:
    used = [value for value in values if value is not None]
    return sum(used) if used else None


@given(data=st.data(), size=st.integers(1, 3), cap=st.sampled_from([1, 40, 10**6]), hook=st.sampled_from([*HOOKS]))
@settings(max_examples=60, deadline=None)
def test_no_gradient_where_no_rank_has_one_else_the_sum(data: Any, size: int, cap: int, hook: str) -> None:
    steps = data.draw(st.lists(st.lists(st.tuples(*[GRADIENT] * PARAMETERS), min_size=size, max_size=size), max_size=3))
    expected = [[sum_of(values) for values in zip(*step, strict=True)] for step in steps]
    for seen in all_well(run_on_ranks(size, lambda comm: exchanged(comm, hook, cap, steps))):
        assert [[g is None for g in step] for step in seen] == [[e is None for e in step] for step in expected]
        for step, sums in zip(seen, expected, strict=True):
            for gradient, value in zip(step, sums, strict=True):
                assert gradient is None or np.allclose(gradient, value, atol=1e-8)


class Alternating(TorchRows):
    """Even steps use the first layer only, odd ones the second only, as the losses of a GAN do."""

    uses = 0

    def build_model(self) -> Any:
        return nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": model[self.uses](batch["x"]).square().sum(dim=1)}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", [None, "adamw", "lamb", "sgd"])
def test_alternating_losses_train_as_torch_does(optimizer: Any, accumulate: int) -> None:
    """Neither momentum nor weight decay moves what the step's loss does not use."""
    task = Alternating("AdamW", weight_decay=0.5)
    options = TrainingOptions(optimizer=optimizer, accumulate_steps=accumulate)
    adapter = TorchAdapter(task, Topology.single(), 1, LR, options)
    model: Any = copy.deepcopy(adapter.model)
    plain = task.build_optimizer(model, LR)
    features = {"x": np.ones((4, 2), np.float32)}
    for step in range(4):
        task.uses = step % 2
        before = [parameter.detach().clone() for parameter in adapter.model.parameters()]
        adapter.train_step(LoadedBatch(step, np.arange(4), np.ones(4, np.float32), features, 4.0), step, LR)
        moved = [not torch.equal(p, was) for p, was in zip(adapter.model.parameters(), before, strict=True)]
        assert moved == [step % 2 == 0] * 2 + [step % 2 == 1] * 2
        plain.zero_grad()
        model[step % 2](torch.ones(4, 2)).square().sum(dim=1).mean().backward()
        plain.step()
    if optimizer is None:
        for ours, theirs in zip(adapter.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fused", [True, False])
def test_fused_momentum_begins_when_a_parameter_is_used_for_the_first_time(fused: bool) -> None:
    """Though others have theirs already."""

    class Growing(Alternating):
        def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"loss": sum(layer(batch["x"]).square().sum(dim=1) for layer in model[: self.uses])}

    task = Growing("SGD", momentum=0.9, fused=fused)
    adapter = TorchAdapter(task, Topology.single(), 1, LR, TrainingOptions())
    model: Any = copy.deepcopy(adapter.model)
    plain = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    features = {"x": np.ones((4, 2), np.float32)}
    for step, task.uses in enumerate((1, 1, 2, 1, 2)):
        adapter.train_step(LoadedBatch(step, np.arange(4), np.ones(4, np.float32), features, 4.0), step, LR)
        plain.zero_grad()
        sum(layer(torch.ones(4, 2)).square().sum(dim=1) for layer in model[: task.uses]).mean().backward()
        plain.step()
    for ours, theirs in zip(adapter.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
