"""`build_optimizer` in torch: who is decayed, torch's own kernels, LARS and LAMB by the neutral rules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.optimizer_reference import NAMES, OPTIONS, drawn, train_by_rules, warm_up
from torch import nn

from hvdtrain.adapters.torch.optimizers import build_optimizer
from hvdtrain.adapters.torch.state import load_state, read_state
from hvdtrain.config.training_options import TrainingOptions, optimizer_settings


def network() -> nn.Module:
    """One of everything: convolution, normalizations, embedding, attention with three-dimensional biases, scalars."""
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "batch": nn.BatchNorm2d(4),
            "group": nn.GroupNorm(2, 4),
            "layer": nn.LayerNorm((2, 4)),
            "rms": nn.RMSNorm((2, 4)),
            "instance": nn.InstanceNorm2d(4, affine=True),
            "embedding": nn.Embedding(5, 4),
            "dense": nn.Linear(4, 2),
            "bilinear": nn.Bilinear(2, 2, 2),
        }
    )
    model.register_parameter("temperature", nn.Parameter(torch.ones(())))
    model.register_parameter("bias", nn.Parameter(torch.ones(3, 1, 1)))
    return model


DECAYED = {"conv.weight", "embedding.weight", "dense.weight", "bilinear.weight"}


def names_in(model: nn.Module, group: dict[str, Any]) -> set[str]:
    own = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in own}


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_decayed_and_normalization_and_biases_are_not(name: Any) -> None:
    model = network()
    decayed, spared = build_optimizer(model, 0.1, TrainingOptions(optimizer=name, weight_decay=0.3)).param_groups
    assert names_in(model, decayed) == DECAYED
    assert names_in(model, spared) == {name for name, _ in model.named_parameters()} - DECAYED
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert decayed["lr"] == spared["lr"] == 0.1


@pytest.mark.parametrize("name", NAMES)
def test_all_are_decayed_on_demand(name: Any) -> None:
    model = network()
    (group,) = build_optimizer(
        model, 0.1, TrainingOptions(optimizer=name, weight_decay=0.3, decay_norm_and_bias=True)
    ).param_groups
    assert names_in(model, group) == {name for name, _ in model.named_parameters()}
    assert group["weight_decay"] == 0.3


def test_frozen_weights_are_in_their_groups_for_later_and_tied_ones_come_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    decayed, spared = build_optimizer(model, 0.1, TrainingOptions(optimizer="adamw")).param_groups
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight), id(model[2].weight)]
    assert [id(p) for p in spared["params"]] == [id(layer.bias) for layer in model]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TrainingOptions(optimizer="sgd"), {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}),
        (TrainingOptions(optimizer="sgd", momentum=0.5, nesterov=True), {"momentum": 0.5, "nesterov": True}),
        (TrainingOptions(optimizer="adam"), {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
        (
            TrainingOptions(optimizer="adamw", beta2=0.95, eps=1e-6),
            {"betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.01},
        ),
    ],
)
def test_settings_reach_torch_s_own(options: TrainingOptions, expected: dict[str, Any]) -> None:
    optimizer = build_optimizer(nn.Linear(2, 2, bias=False), 0.1, options)
    assert (
        type(optimizer)
        is {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.optimizer or ""]
    )
    assert {name: optimizer.param_groups[0][name] for name in expected} == expected


@given(data=st.data(), seed=st.integers(0, 1000), still=st.sampled_from([0.0, 0.3]))
@settings(max_examples=25)
@pytest.mark.parametrize("name", NAMES)
def test_the_trained_are_as_by_the_rules(name: str, data: st.DataObject, seed: int, still: float) -> None:
    """Every optimizer, decayed and exempt parameters beside each other, in float32."""
    options = data.draw(OPTIONS[name])
    model = nn.ParameterDict({"weight": torch.zeros(3, 4), "other": torch.zeros(2, 2, 5), "bias": torch.zeros(6)})
    given_ = {}
    for place, (key, parameter) in enumerate(model.items()):
        given_[key] = drawn(seed + place, 20, tuple(parameter.shape), still)
        parameter.data.copy_(torch.from_numpy(given_[key][0]))
    optimizer = build_optimizer(model, 0.1, options)
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = warm_up(step)
        for key, parameter in model.items():
            parameter.grad = torch.from_numpy(given_[key][1][step]).float()
        optimizer.step()
    chosen = optimizer_settings(options)
    for key, parameter in model.items():
        expected = train_by_rules(chosen.for_exempt() if key == "bias" else chosen, warm_up, *given_[key])
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_how_gradients_lie_in_memory_does_not_matter(name: Any) -> None:
    """torch's fused kernels on a CPU would pair up the wrong elements."""
    torch.manual_seed(0)
    filters, gradient = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    trained = []
    for weight, grad in (
        (filters, gradient),
        (filters.to(memory_format=torch.channels_last), gradient),
        (filters, gradient.to(memory_format=torch.channels_last)),
        (torch.empty(4, 3, 2, 4)[..., ::2].copy_(filters), gradient),
    ):
        model = nn.ParameterDict({"weight": nn.Parameter(weight.clone() if weight.is_contiguous() else weight)})
        optimizer = build_optimizer(model, 0.1, TrainingOptions(optimizer=name))
        for _ in range(2):
            model["weight"].grad = grad.clone(memory_format=torch.preserve_format)
            optimizer.step()
        trained.append(model["weight"].detach())
    for other in trained[1:]:
        torch.testing.assert_close(other, trained[0])


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_optimizer_goes_on_bit_by_bit(name: Any) -> None:
    first = network()
    second = copy.deepcopy(first)
    options = TrainingOptions(optimizer=name, weight_decay=0.1)
    optimizers = build_optimizer(first, 0.1, options), build_optimizer(second, 0.1, options)
    for seed in range(3):
        one_step(first, optimizers[0], seed)
    state = read_state(first, optimizers[0])
    assert any(key.startswith("optimizer/") for key in state)
    load_state(second, optimizers[1], state)
    for model, optimizer in zip((first, second), optimizers, strict=True):
        one_step(model, optimizer, 7)
    after = read_state(second, optimizers[1])
    for key, array in read_state(first, optimizers[0]).items():
        np.testing.assert_array_equal(after[key], array)


def test_parameters_that_begin_later_have_their_own_count() -> None:
    """One without a gradient is left alone, and its first update is corrected as a first one."""
    early, late = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer(nn.ParameterList([early, late]), 0.1, TrainingOptions(optimizer="lamb"))
    early.grad = torch.full((2, 2), 0.5)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.ones(2, 2), rtol=0, atol=0)
    first_of_early = early.detach().clone()
    late.grad = torch.full((2, 2), 0.5)
    optimizer.step()
    torch.testing.assert_close(late.detach(), first_of_early)
    assert [optimizer.state[p]["step"] for p in (early, late)] == [2, 1]


def test_sparse_gradients_train_as_dense_ones() -> None:
    tables = []
    for sparse in (False, True):
        torch.manual_seed(1)
        table = nn.Embedding(6, 3, sparse=sparse)
        optimizer = build_optimizer(table, 0.1, TrainingOptions(optimizer="lars", weight_decay=0.1))
        table(torch.tensor([1, 1, 4])).sum().backward()
        optimizer.step()
        tables.append(table.weight.detach())
    torch.testing.assert_close(tables[1], tables[0])


def test_sparse_gradients_are_left_to_torch_where_they_are_asked_for() -> None:
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = build_optimizer(
        table, 0.1, TrainingOptions(optimizer="sgd", momentum=0.0, sparse_gradients="allgather")
    )
    before = table.weight.detach().clone()
    table(torch.tensor([1, 1, 4])).sum().backward()
    optimizer.step()
    moved = (table.weight.detach() - before).sum(1)
    torch.testing.assert_close(moved, torch.tensor([0.0, -0.6, 0.0, 0.0, -0.3, 0.0]))


def test_a_closure_is_called_once_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer(nn.ParameterList([weight]), 0.1, TrainingOptions(optimizer="lars"))

    def closure() -> float:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(weight[0, 0].detach()) < 1
