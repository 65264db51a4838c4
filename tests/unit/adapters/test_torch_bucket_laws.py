"""Gradients that are summed in buckets are the gradients that plain autograd gives, times the number of ranks.

Each law holds for gradients that share a buffer, and for those that travel by themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.buckets_here import SameOnAllRanks, assert_gradients, buckets_of, layers
from torch import nn
from torch.utils.checkpoint import checkpoint

from hvdtrain.adapters import sync_state as module
from hvdtrain.adapters.torch.comm_hooks import PlainSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients
from hvdtrain.errors import UsageError


@pytest.fixture(params=[module.LARGE_BYTES, 1], ids=["shared", "alone"], scope="module", autouse=True)
def from_this_size_on_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", request.param)
        yield


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
    model: Any = nn.Conv2d(2, 3, 2).double()  # two kernels, which round differently
    plain = copy.deepcopy(model)
    model = model.to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    buckets = buckets_of(model, SameOnAllRanks(2))
    for network in (model, plain):
        network(torch.arange(36.0, dtype=torch.float64).reshape(2, 2, 3, 3)).square().sum().backward()
    buckets.finish()
    assert_gradients(model, plain, 2)


class Shared(nn.Module):
    """Autograd gives both weights one gradient, in the same memory."""

    def __init__(self, join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.join = join
        self.first, self.second = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.full((2, 3), 2.0))

    def forward(self) -> torch.Tensor:
        return self.join(self.first, self.second).square().sum()


@pytest.mark.parametrize("join", [lambda a, b: a.view(6) + b.view(6), lambda a, b: torch.cat([a, b]), torch.add])
def test_gradients_that_autograd_puts_into_the_same_memory_are_summed_once(join: Any) -> None:
    model = Shared(join)
    plain = copy.deepcopy(model)
    buckets = buckets_of(model, SameOnAllRanks(2))
    expected = torch.autograd.grad(plain(), list(plain.parameters()))  # plain backward passes share memory, too
    for passes in (1, 3):
        for number in range(passes):
            buckets.set_grad_sync(number + 1 == passes)
            model().backward()
        buckets.finish()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, 2 * passes * gradient)
        buckets.clear()


def channels_last(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("weight", "loss"),
    [
        (channels_last(2, 3, 2, 2), lambda w: (w * 2).sum()),
        (channels_last(2, 3, 2, 2), lambda w: torch.cat([w, channels_last(2, 3, 2, 2)]).sum()),
        (torch.ones(3, 2, 4)[..., ::2].transpose(0, 1), lambda w: (w * 2).sum()),  # with gaps
        (
            torch.ones(2, 3).t(),
            lambda w: nn.functional.embedding(torch.tensor([0, 2]), w, sparse=True).sum(),
        ),
    ],
    ids=["channels last", "part of another", "with gaps", "sparse"],
)
def test_a_gradient_is_sent_in_one_order_whatever_autograd_made(weight: torch.Tensor, loss: Any) -> None:
    """Another rank may have used the weight in another way, or not at all."""
    orders = []
    for used in (True, False):
        parameter = nn.Parameter(weight.clone())
        sent: list[torch.Tensor] = []
        hook = PlainSum(lambda flat, _name, sent=sent: sent.append(flat), keeps_unused=False)  # type: ignore[misc]
        buckets = SummedGradients([("weight", parameter)], hook, lambda handle: handle)
        if used:
            loss(parameter).backward()
        buckets.finish()
        assert parameter.grad is not None
        assert bool(parameter.grad.any()) == used
        assert sent[0].data_ptr() == parameter.grad.data_ptr()
        orders.append(parameter.grad.stride())
    assert orders[0] == orders[1]


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


def test_what_a_loss_does_not_need_has_no_gradient_and_not_that_of_the_update_before() -> None:
    model = layers(2, 2, 2)
    buckets = buckets_of(model, SameOnAllRanks(2))
    x = torch.ones(3, 2)
    for whole in (True, False):
        buckets.set_grad_sync(True)
        (model(x) if whole else model[0](x)).square().sum().backward()
        buckets.finish()
        assert (model[1].weight.grad is not None) == whole
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
