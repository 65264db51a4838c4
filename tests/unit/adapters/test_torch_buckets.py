"""Gradients that are summed in buckets are the gradients that plain autograd gives, times the number of ranks.

The sum over ranks is done in this process: `start_sum` multiplies, as if every rank had the same samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_training import LR, TorchRows

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.comm_hooks import PlainSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology


class SameOnAllRanks:
    """Sums over `ranks` equal ranks; keeps what was asked of it."""

    def __init__(self, ranks: int = 1) -> None:
        self.ranks = ranks
        self.started: list[tuple[str, int]] = []
        self.waited: list[str] = []

    def start(self, flat: torch.Tensor, name: str) -> str:
        self.started.append((name, flat.numel()))
        flat.mul_(self.ranks)
        return name

    def wait(self, handle: str) -> None:
        self.waited.append(handle)


def buckets_of(model: nn.Module, ranks: SameOnAllRanks, bucket_bytes: int = 10**6) -> SummedGradients:
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return SummedGradients(trainable, PlainSum(ranks.start), ranks.wait, bucket_bytes)


def layers(*widths: int) -> Any:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


def assert_gradients(model: nn.Module, plain: nn.Module, factor: float = 1.0) -> None:
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad * factor
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, expected, rtol=1e-6, atol=1e-7)


@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    bucket_bytes=st.integers(1, 300),
    ranks=st.integers(1, 4),
)
@settings(max_examples=30)
def test_any_bucket_size_gives_the_plain_gradient(widths: list[int], bucket_bytes: int, ranks: int) -> None:
    model = layers(*widths)
    plain = copy.deepcopy(model)
    world = SameOnAllRanks(ranks)
    buckets = buckets_of(model, world, bucket_bytes)
    for round_ in range(2):
        x = torch.full((3, widths[0]), 0.5 + round_)
        model(x).square().sum().backward()
        buckets.finish()
        plain.zero_grad()
        plain(x).square().sum().backward()
        assert_gradients(model, plain, ranks)
        buckets.clear()
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
    assert len(set(world.waited)) * 2 == len(world.started) == len(world.waited)
    assert sum(size for _, size in world.started) == 2 * sum(p.numel() for p in model.parameters())


def test_boundaries_from_the_last_parameter_to_the_first() -> None:
    world = SameOnAllRanks()
    model = layers(2, 3, 4)  # from the last: 4 + 12 + 3 + 6 numbers of 4 bytes
    buckets = buckets_of(model, world, bucket_bytes=4 * 16)
    model(torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert world.started == [("hvdtrain.gradients.0", 16), ("hvdtrain.gradients.1", 9)]


def test_one_parameter_larger_than_a_bucket_has_its_own() -> None:
    world = SameOnAllRanks()
    model = layers(2, 3)
    buckets = buckets_of(model, world, bucket_bytes=1)
    model(torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert sorted(size for _, size in world.started) == [3, 6]


def test_dtypes_are_not_mixed() -> None:
    world = SameOnAllRanks(2)
    parameters = [
        ("a", nn.Parameter(torch.ones(2))),
        ("b", nn.Parameter(torch.ones(3, dtype=torch.float64))),
        ("c", nn.Parameter(torch.ones(4, dtype=torch.float64))),
    ]
    buckets = SummedGradients(parameters, PlainSum(world.start), world.wait)
    sum(p.double().sum() for _, p in parameters).backward()  # type: ignore[union-attr]
    buckets.finish()
    assert sorted(size for _, size in world.started) == [2, 7]
    assert all(p.grad is not None and bool((p.grad == 2).all()) for _, p in parameters)


def test_a_bucket_leaves_while_the_backward_pass_still_runs() -> None:
    world = SameOnAllRanks()
    model = layers(2, 2, 2)
    buckets = buckets_of(model, world, bucket_bytes=4 * 6)
    started_before_first_layer: list[int] = []
    model[0].weight.register_hook(lambda _: started_before_first_layer.append(len(world.started)))
    model(torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert started_before_first_layer == [1]


def test_an_unused_parameter_is_summed_as_zeros_and_keeps_every_rank_in_step() -> None:
    world = SameOnAllRanks()
    model = layers(2, 2, 2)
    buckets = buckets_of(model, world)
    model[1](torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert [size for _, size in world.started] == [12]
    assert model[0].weight.grad is not None
    assert not model[0].weight.grad.any()


class OneUnused(TorchRows):
    def build_model(self) -> Any:
        model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        nn.init.ones_(model[0].weight)
        return model


def test_an_unused_parameter_is_decayed_alike_in_one_process_and_in_many() -> None:
    """Optimizers skip a parameter without a gradient, so both ways must give it one."""

    class Task(OneUnused):
        def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
            return {"loss": model[1](batch["x"]).sum(dim=1)}

    task = Task("AdamW", weight_decay=0.5)
    adapter = TorchAdapter(task, Topology.single(), 1, LR, TrainingOptions())
    model: Any = copy.deepcopy(adapter.model)
    optimizer = task.build_optimizer(model, LR)
    buckets = buckets_of(model, SameOnAllRanks())
    features = {"x": np.ones((4, 2), np.float32)}
    for step in range(3):
        adapter.train_step(LoadedBatch(step, np.arange(4), np.ones(4, np.float32), features, 4.0), step, LR)
        model[1](torch.ones(4, 2)).sum(dim=1).mean().backward()
        buckets.finish()
        optimizer.step()
        buckets.clear()
    for ours, theirs in zip(adapter.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert bool((model[0].weight < 1).all())


def test_tied_weights_are_one_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    plain = copy.deepcopy(model)
    assert plain[2].weight is plain[0].weight
    world = SameOnAllRanks(3)
    buckets = buckets_of(model, world)
    for network in (model, plain):
        network(torch.ones(2, 3)).square().sum().backward()
    buckets.finish()
    assert_gradients(model, plain, 3)
    assert [size for _, size in world.started] == [9 + 3 + 3]


def zero_to_none(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)


def replace_by_ones(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


@pytest.mark.parametrize("disturb", [zero_to_none, replace_by_ones])
def test_a_replaced_gradient_is_taken_back(disturb: Callable[[nn.Module], None]) -> None:
    """The task may clear or set `.grad` before the backward pass: what autograd then makes of it is what is summed."""
    model = layers(2, 3, 2)
    plain = copy.deepcopy(model)
    world = SameOnAllRanks(2)
    buckets = buckets_of(model, world)
    for _ in range(2):
        for network in (model, plain):
            disturb(network)
            network(torch.ones(2, 2)).square().sum().backward()
        buckets.finish()
        assert_gradients(model, plain, 2)
        buckets.clear()
        plain.zero_grad()


def test_a_cleared_gradient_that_this_rank_does_not_need_is_still_the_sum() -> None:
    """Other ranks may need it: the optimizer must see their part, as it does there."""
    model = layers(2, 2, 2)

    def others_have_one(flat: torch.Tensor, name: str) -> str:
        flat.add_(1)
        return name

    trainable = list(model.named_parameters())
    buckets = SummedGradients(trainable, PlainSum(others_have_one), lambda handle: handle)
    zero_to_none(model)
    model[1](torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert model[0].weight.grad is not None
    torch.testing.assert_close(model[0].weight.grad, torch.ones(2, 2))


def test_channels_last_gradients_are_right() -> None:
    model: Any = nn.Conv2d(2, 3, 2)
    plain = copy.deepcopy(model)
    model = model.to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    buckets = buckets_of(model, SameOnAllRanks(2))
    for network in (model, plain):
        network(torch.arange(36.0).reshape(2, 2, 3, 3)).square().sum().backward()
    buckets.finish()
    assert_gradients(model, plain, 2)


def twice(layer: nn.Module, x: torch.Tensor, reentrant: bool) -> Any:
    for _ in range(2):
        x = checkpoint(layer, x, use_reentrant=reentrant)
    return x


def test_activation_checkpointing_of_a_shared_layer() -> None:
    layer = nn.Linear(3, 3)
    plain = copy.deepcopy(layer)
    buckets = buckets_of(layer, SameOnAllRanks(2))
    twice(layer, torch.ones(2, 3, requires_grad=True), reentrant=False).square().sum().backward()
    buckets.finish()
    plain(plain(torch.ones(2, 3))).square().sum().backward()
    assert_gradients(layer, plain, 2)


def test_a_gradient_after_its_sum_has_begun_is_refused() -> None:
    """Reentrant checkpointing adds to a shared layer's gradient in several parts, of which only one would be summed."""
    layer = nn.Linear(3, 3)
    buckets_of(layer, SameOnAllRanks(2))
    with pytest.raises(UsageError, match="arrived after the sum over ranks had begun"):
        twice(layer, torch.ones(2, 3, requires_grad=True), reentrant=True).square().sum().backward()


def test_sparse_gradients_are_put_into_buckets_over_several_backward_passes_and_updates() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(7, 3, sparse=True)
    plain = nn.Embedding(7, 3)
    plain.load_state_dict(model.state_dict())
    buckets = buckets_of(model, SameOnAllRanks(2))
    for words in ([1, 1, 4], [0, 6, 6]):
        plain.zero_grad()
        for last in (False, True):
            buckets.set_grad_sync(last)
            model(torch.tensor(words)).square().sum().backward()
            plain(torch.tensor(words)).square().sum().backward()
        buckets.finish()
        assert_gradients(model, plain, 2)
        buckets.clear()


def test_what_a_loss_does_not_need_has_a_zero_gradient_and_not_that_of_the_update_before() -> None:
    model = layers(2, 2, 2)
    buckets = buckets_of(model, SameOnAllRanks(2))
    x = torch.ones(3, 2)
    for whole in (True, False):
        buckets.set_grad_sync(True)
        (model(x) if whole else model[0](x)).square().sum().backward()
        buckets.finish()
        assert bool(model[1].weight.grad.any()) == whole
        assert model[0].weight.grad.any()
        buckets.clear()


@settings(max_examples=20)
@given(caps=st.lists(st.integers(1, 300), min_size=1, max_size=3), ranks=st.integers(1, 3))
def test_buckets_can_be_changed_between_steps(caps: list[int], ranks: int) -> None:
    """Each time the gradient is the plain one again, in the buckets that were foretold, and nothing is summed twice."""
    torch.manual_seed(0)
    model = layers(5, 4, 3, 2)
    world = SameOnAllRanks(ranks)
    buckets = buckets_of(model, world)
    for cap in caps:
        buckets.set_bucket_cap(cap)
        plain, x = copy.deepcopy(model), torch.randn(3, 5)
        for parameter in plain.parameters():
            parameter.grad = None
        world.started.clear()
        for each in (model, plain):
            each(x).sum().backward()
        buckets.finish()
        assert_gradients(model, plain, ranks)
        assert len(world.started) == len(buckets.buckets(cap))
        assert sum(count for _, count in world.started) == sum(p.numel() for p in model.parameters())
        buckets.clear()
