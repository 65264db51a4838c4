"""Torch's comm_hooks in one process: which memory is seen as a matrix, and where Adasum is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hvdtrain.adapters.choose_sync import require_adasum
from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.gradient_sync import NoSync, SummedGradients
from hvdtrain.algorithms import powersgd_rule
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

POWERSGD = TrainingOptions(compression="powersgd", powersgd_rank=1)
INPUTS = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5).sin()


def convolution(memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    torch.manual_seed(1)
    return nn.Conv2d(3, 4, 3).to(memory_format=memory_format)


def exchange_of(model: Any, options: TrainingOptions = POWERSGD) -> Any:
    return open_gradient_sync(model, torch.optim.SGD(model.parameters(), 0.1), Topology.single(), options)


def update(model: Any, exchange: Any, scale: float = 1.0) -> list[torch.Tensor]:
    exchange.set_grad_sync(True)
    (model(INPUTS).square().sum() * scale).backward()
    exchange.finish()
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    exchange.clear()
    return found


def test_one_process_needs_a_comm_hook_for_powersgd_only() -> None:
    assert isinstance(exchange_of(convolution(), TrainingOptions(compression="bf16")), NoSync)
    assert isinstance(exchange_of(convolution(), TrainingOptions(reduce_op="sum")), NoSync)
    assert isinstance(exchange_of(convolution()), SummedGradients)


def test_outputs_of_a_filter_stand_against_all_else_and_biases_travel_whole() -> None:
    plain = convolution()
    plain(INPUTS).square().sum().backward()
    weight, bias = plain.weight.grad.reshape(4, 27), plain.bias.grad
    model = convolution()
    weight_home, bias_home = update(model, exchange_of(model))
    torch.testing.assert_close(bias_home, bias)
    left = torch.linalg.qr(weight @ torch.from_numpy(powersgd_rule.first_factor(0, 27, 1))).Q
    torch.testing.assert_close(weight_home.reshape(4, 27), left @ (left.T @ weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nothing_is_lost_in_any_memory_layout(memory_format: torch.memory_format) -> None:
    """What came home and what is owed, which a checkpoint holds in the parameter's shape, are the gradients."""
    plain, model = convolution(), convolution(memory_format)
    exchange = exchange_of(model)
    plain(INPUTS).square().sum().backward()
    home = update(model, exchange)[0] + update(model, exchange, scale=-3.0)[0]
    owed = torch.from_numpy(exchange.rank_local_state()[powersgd_rule.ERRORS + "weight"])
    assert owed.shape == plain.weight.shape
    assert owed.abs().max() > 1
    torch.testing.assert_close(home + owed, -2 * plain.weight.grad, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_one_layout_goes_on_in_the_other() -> None:
    models = [convolution(), convolution(torch.channels_last)]
    exchanges = [exchange_of(model) for model in models]
    update(models[0], exchanges[0])
    exchanges[1].load_state(exchanges[0].state())
    for name, array in exchanges[0].rank_local_state().items():
        np.testing.assert_array_equal(exchanges[1].rank_local_state()[name], array)


def test_the_memory_of_a_frozen_layer_stays_as_it_is_and_arrives_when_it_is_trained_again() -> None:
    model = convolution()
    exchange = exchange_of(model)
    update(model, exchange)
    before = exchange.state()
    model.weight.requires_grad_(False)
    for _ in range(6):
        weight, bias = update(model, exchange)
        assert not weight.any()
        assert bias.any()
    after = exchange.state()
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    model.weight.requires_grad_(True)
    assert update(model, exchange, scale=0.0)[0].abs().max() > 1


def test_another_rank_than_the_checkpoint_s_is_refused_and_none_begins_anew() -> None:
    model = convolution()
    exchange = exchange_of(model)
    fresh = exchange.state()
    update(model, exchange)
    other = exchange_of(convolution(), TrainingOptions(compression="powersgd", powersgd_rank=2))
    with pytest.raises(UsageError, match="--powersgd-rank"):
        other.load_state(exchange.state())
    exchange.load_state({})
    assert fresh.keys() == exchange.state().keys()
    assert all(np.array_equal(fresh[name], array) for name, array in exchange.state().items())


@pytest.mark.parametrize(
    ("facts", "on_gpu", "fact"),
    [
        ({"mpi_enabled": False, "size": 2}, False, "Horovod runs over Gloo"),
        ({"mpi_enabled": True, "size": 6}, False, "for 6 workers"),
        ({"mpi_enabled": True, "size": 8}, False, ""),
        ({"mpi_enabled": True, "size": 12, "local_size": 4, "nccl_built": True}, True, "for 3 nodes"),
        ({"mpi_enabled": True, "size": 12, "local_size": 3, "nccl_built": True}, True, ""),
        ({"mpi_enabled": True, "size": 12, "local_size": 3, "nccl_built": False}, True, "for 12 workers"),
    ],
)
def test_where_adasum_is_refused(facts: dict[str, Any], on_gpu: bool, fact: str) -> None:
    hvd = SimpleNamespace(**{name: (lambda value=value: value) for name, value in facts.items()})
    if not fact:
        require_adasum(hvd, on_gpu)
        return
    with pytest.raises(UsageError, match=fact):
        require_adasum(hvd, on_gpu)
