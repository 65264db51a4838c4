"""Which gradients share a bucket, and when it leaves."""

from __future__ import annotations

import copy

import pytest
import torch
from support.buckets_here import SameOnAllRanks, assert_gradients, buckets_of, layers
from torch import nn

from hvdtrain.adapters import sync_state as module
from hvdtrain.adapters.torch.comm_hooks import PlainSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients


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


def test_an_unused_parameter_takes_part_in_the_sum_and_keeps_every_rank_in_step() -> None:
    world = SameOnAllRanks()
    model = layers(2, 2, 2)
    buckets = buckets_of(model, world)
    model[1](torch.ones(1, 2)).sum().backward()
    buckets.finish()
    assert [size for _, size in world.started] == [12]
    assert model[0].weight.grad is None  # no rank has used it


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


def test_strides_of_a_dimension_of_size_one_cost_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter of 1×1 is the same in every order; autograd may give its gradient other strides."""
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    filters = nn.Parameter(torch.zeros(4, 3, 1, 1))
    buckets = SummedGradients([("filters", filters)], PlainSum(SameOnAllRanks().start), lambda handle: handle)
    filters.grad = made = torch.empty_strided((4, 3, 1, 1), (3, 1, 3, 3)).fill_(1)
    assert made.stride() != filters.stride()
    buckets.finish()
    assert filters.grad is not None
    assert filters.grad.data_ptr() == made.data_ptr()


def test_a_large_gradient_travels_alone_and_in_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 4 * 12)
    world = SameOnAllRanks()
    model = layers(2, 3, 4)  # from the last: 4 + 12 + 3 + 6 numbers of 4 bytes
    buckets = buckets_of(model, world)
    model(torch.ones(1, 2)).sum().backward()
    made = model[1].weight.grad
    buckets.finish()
    assert world.started == [("hvdtrain.gradients.1", 12), ("hvdtrain.gradients.0", 13)]
    assert model[1].weight.grad is made  # no copy
    assert buckets.buckets(10**6) == (3, 1)
