"""SyncBatchNorm in torch: workers with parts of a batch compute what one process computes on all of it.

Workers are threads here, and their collectives meet at a barrier: tests/parallel runs the same through Horovod.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm
from hvdtrain.errors import UsageError

pytestmark = pytest.mark.timeout(60)


def torch_sum(ranks: Any) -> Callable[[torch.Tensor, str], torch.Tensor]:
    return lambda tensor, name: torch.from_numpy(ranks.sum(tensor.numpy(), name))


def one_layer(dims: int, channels: int, affine: bool, momentum: float | None, tracked: bool = True) -> nn.Module:
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    layer = kind(channels, eps=1e-3, momentum=momentum, affine=affine, track_running_stats=tracked)
    if affine:
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 1.5, channels))
            layer.bias.copy_(torch.linspace(-1, 1, channels))
    return layer.double()


def run(layer: nn.Module, x: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
    """Output and gradients of a loss that weighs each value of the output."""
    x = x.clone().requires_grad_()
    with batch_mask(mask):
        y = layer(x)
    (y.square() * weights + y * weights).sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, "grads": grads, "buffers": dict(layer.named_buffers())}


def never(_: torch.Tensor, name: str) -> torch.Tensor:
    raise AssertionError(f"a collective: {name}")


def split(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(tensor.split(list(sizes)))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 1),
    dims=st.integers(1, 3),
    affine=st.booleans(),
    momentum=st.sampled_from([0.1, 0.5, None]),
    masked=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_parts_on_ranks_are_the_whole_on_one(
    on_ranks: Any, sizes: list[int], dims: int, affine: bool, momentum: float | None, masked: int, seed: int
) -> None:
    torch.manual_seed(seed)
    n, channels = sum(sizes), 3
    shape = (n, channels) if dims == 1 else (n, channels, *[2] * dims)[: 2 + dims]
    x = 3 + 2 * torch.randn(shape, dtype=torch.float64)
    real = torch.ones(n, dtype=torch.bool)
    real[: min(masked, n - 2)] = False
    weights = torch.randn(shape, dtype=torch.float64) * real.view(-1, *[1] * (x.dim() - 1))
    plain = one_layer(dims, channels, affine, momentum)
    expected = run(plain, x[real], weights[real])

    def work(rank: int, ranks: Any) -> dict[str, Any]:
        layer = convert_sync_batch_norm(one_layer(dims, channels, affine, momentum), torch_sum(ranks))
        own = split(real, sizes)[rank]
        mask = None if own.all() else own
        return run(layer, split(x, sizes)[rank], split(weights, sizes)[rank], mask)

    found, names = on_ranks(len(sizes), work)
    assert names == ["hvdtrain.sync_batch_norm..forward", "hvdtrain.sync_batch_norm..backward"]
    torch.testing.assert_close(torch.cat([f["y"] for f in found])[real], expected["y"])
    gradient = torch.cat([f["dx"] for f in found])
    torch.testing.assert_close(gradient[real], expected["dx"])
    assert not gradient[~real].any()
    for name, grad in expected["grads"].items():
        torch.testing.assert_close(sum(f["grads"][name] for f in found), grad)
    for each in found:
        torch.testing.assert_close(each["buffers"], expected["buffers"])


def test_the_gradient_is_that_of_the_function() -> None:
    """Also where masked rows do count in the loss: they are normalized, but the statistics do not know them."""
    torch.manual_seed(0)
    layer = convert_sync_batch_norm(one_layer(2, 2, affine=True, momentum=0.1, tracked=False), None)
    x = torch.randn(4, 2, 3, 2, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        with batch_mask(torch.tensor([True, False, True, True])):
            return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(function, (x, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_narrow_types_and_layouts(on_ranks: Any, dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Statistics are float32, and features keep their dtype and memory layout."""
    torch.manual_seed(0)
    x = (100 + torch.randn(6, 4, 5, 5)).to(dtype).to(memory_format=layout)
    weights = torch.randn(x.shape)
    plain = one_layer(2, 4, affine=True, momentum=0.1).float()
    expected = run(copy.deepcopy(plain).double(), x.double(), weights.double())

    def work(rank: int, ranks: Any) -> dict[str, Any]:
        layer = convert_sync_batch_norm(copy.deepcopy(plain), torch_sum(ranks))
        own = run(layer, split(x, (5, 1))[rank], split(weights, (5, 1))[rank])
        assert own["y"].is_contiguous(memory_format=layout)
        assert own["dx"].is_contiguous(memory_format=layout)
        return own

    found, _ = on_ranks(2, work)
    # float32 holds numbers around 100 to 8e-6, sums of squares of such add their own, in an order that threads choose.
    exact, rounding = 1e-3, 8 * torch.finfo(dtype).eps
    y, dx = torch.cat([f["y"] for f in found]), torch.cat([f["dx"] for f in found])
    assert y.dtype == dx.dtype == dtype
    torch.testing.assert_close(y.double(), expected["y"], rtol=rounding, atol=exact + rounding)
    torch.testing.assert_close(dx.double(), expected["dx"], rtol=rounding, atol=exact + 4 * rounding)
    buffers = {name: buffer.to(expected["buffers"][name].dtype) for name, buffer in found[1]["buffers"].items()}
    torch.testing.assert_close(buffers, expected["buffers"], rtol=1e-4, atol=1e-5)
    assert found[0]["buffers"]["running_var"].dtype == torch.float32


def test_far_from_zero_the_variance_survives(on_ranks: Any) -> None:
    """Sums of squares in float32 would leave nothing of a variance of 1 beside a mean of 10 000."""
    torch.manual_seed(0)
    x = 10_000 + torch.randn(64, 2)
    layers, _ = on_ranks(2, lambda rank, ranks: _trained(ranks, split(x, (40, 24))[rank]))
    expected = x.double().var(0).float()
    torch.testing.assert_close(layers[0].running_var, expected, rtol=1e-3, atol=0)


def _trained(ranks: Any, x: torch.Tensor) -> nn.Module:
    layer = convert_sync_batch_norm(nn.BatchNorm1d(2, momentum=1.0), torch_sum(ranks))
    layer(x)
    return layer


@pytest.mark.parametrize("real", [0, 1])
def test_without_a_variance_the_running_statistics_stand_in(real: int) -> None:
    """A micro batch of fill records, or one record of one value a channel: nothing is to be learnt from it."""
    layer = convert_sync_batch_norm(nn.BatchNorm1d(2, momentum=None), None)
    with torch.no_grad():
        layer.running_mean.fill_(3.0)
        layer.running_var.fill_(4.0)
    x = torch.randn(3, 2)
    out = run(layer, x, torch.ones(3, 2), torch.arange(3) < real)
    torch.testing.assert_close(out["y"], (x - 3) / (4 + layer.eps) ** 0.5)
    torch.testing.assert_close(out["dx"], (2 * out["y"] + 1) / (4 + layer.eps) ** 0.5)
    assert layer.running_mean.eq(3).all()
    assert layer.running_var.eq(4).all()
    assert layer.num_batches_tracked == 0


def test_a_mask_of_another_length_is_not_meant() -> None:
    """Features whose first axis is no longer the batch's."""
    x = torch.randn(8, 3)
    with batch_mask(torch.tensor([True, False])):
        masked = convert_sync_batch_norm(nn.BatchNorm1d(3), None)(x)
    torch.testing.assert_close(masked, nn.BatchNorm1d(3)(x))


def test_conversion_keeps_the_layers() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, eps=0.5, momentum=0.7), nn.InstanceNorm2d(2))
    model[1].eval()
    parameters, names = list(model.parameters()), list(model.state_dict())
    assert convert_sync_batch_norm(model, None) is model
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert list(model.state_dict()) == names
    assert isinstance(model[1], nn.BatchNorm2d)
    assert (model[1].eps, model[1].momentum, model[1].training) == (0.5, 0.7, False)
    assert type(model[2]) is nn.InstanceNorm2d
    x = torch.randn(2, 1, 4, 4)
    torch.testing.assert_close(convert_sync_batch_norm(copy.deepcopy(model), never)(x), model(x))


def test_a_layer_in_evaluation_needs_no_other_rank_and_no_mask() -> None:
    layer = convert_sync_batch_norm(one_layer(1, 3, affine=True, momentum=0.1), never).eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    with batch_mask(torch.tensor([True, False, True, True])):
        torch.testing.assert_close(layer(x), one_layer(1, 3, affine=True, momentum=0.1).eval()(x))


def test_models_for_torch_distributed_work_without_it(on_ranks: Any) -> None:
    x = torch.randn(4, 2)

    def work(rank: int, ranks: Any) -> torch.Tensor:
        return convert_sync_batch_norm(nn.SyncBatchNorm(2), torch_sum(ranks))(x[2 * rank :][:2])

    torch.testing.assert_close(torch.cat(on_ranks(2, work)[0]), nn.BatchNorm1d(2)(x))


def test_a_batch_norm_of_another_class_is_refused() -> None:
    class Own(nn.BatchNorm2d):
        pass

    with pytest.raises(UsageError, match="'1' is a Own"):
        convert_sync_batch_norm(nn.Sequential(nn.ReLU(), Own(3)), None)
