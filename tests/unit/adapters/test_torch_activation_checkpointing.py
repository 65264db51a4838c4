"""Activation checkpointing in torch: the same training, bit for bit, with less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.torch.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm
from hvdtrain.errors import UsageError
from hvdtrain.models.torch.zoo import Transformer, build_model, small_cnn

pytestmark = pytest.mark.timeout(60)


class Block(nn.Module):
    """Everything that a repetition might do twice or otherwise."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.batch = nn.BatchNorm2d(4, momentum=momentum)
        self.instance = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.spectral = spectral_norm(nn.Conv2d(4, 4, 1))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.dropout(self.spectral(self.instance(self.batch(self.conv(x)).relu())))


def stages() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Sequential(Block(), Block(None)),
        nn.Sequential(Block(), nn.ReLU()),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


PICTURES = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8).sin()
SYMBOLS = torch.arange(4 * 6).reshape(4, 6) % 11

MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int]] = {
    "stages": (stages, PICTURES, 3),
    "resnet18": (lambda: build_model("resnet18", 3, 8), PICTURES, 8),
    "mobilenet_v2": (lambda: build_model("mobilenet_v2", 3, 32), torch.rand(8, 3, 32, 32), 19),
    "transformer": (lambda: Transformer(11, 6, 8, 2, blocks=3), SYMBOLS, 3),
    "torch's encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 2, enable_nested_tensor=False
        ),
        torch.randn(2, 4, 6),
        2,
    ),
}


def trained(model: nn.Module, x: torch.Tensor, steps: int = 2) -> dict[str, Any]:
    """State and gradients after some updates with dropout."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()
    return {"state": model.state_dict(), "grads": {name: p.grad for name, p in model.named_parameters()}}


def pair(make: Callable[[], nn.Module], x: torch.Tensor) -> tuple[nn.Module, nn.Module]:
    """The same model twice."""
    torch.manual_seed(7)
    model = make()
    model(x)  # shapes of lazy layers
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_bit_for_bit(name: str) -> None:
    make, x, blocks = MODELS[name]
    plain, saving = pair(make, x)
    names = list(saving.state_dict())
    assert checkpoint_activations(saving) == blocks
    assert list(saving.state_dict()) == names
    torch.testing.assert_close(trained(saving, x), trained(plain, x), rtol=0, atol=0)


def test_under_autocast_and_with_a_retained_graph() -> None:
    plain, saving = pair(stages, PICTURES)
    checkpoint_activations(saving)
    for model in (plain, saving):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(PICTURES).float().square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
    torch.testing.assert_close(plain.state_dict(), saving.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("real", [None, torch.tensor([True, False, True, True])])
def test_synchronized_layers_run_their_collectives_once(real: torch.Tensor | None) -> None:
    """The repetition takes the statistics of the forward pass, mask and all."""
    plain, saving = pair(lambda: build_model("resnet18", 3, 8), PICTURES)
    checkpoint_activations(saving)
    found = []
    for model in (plain, saving):
        names: list[str] = []

        def sum_over_ranks(tensor: torch.Tensor, name: str, names: list[str] = names) -> torch.Tensor:
            names.append(name)
            return tensor * 2

        convert_sync_batch_norm(model, sum_over_ranks)
        with batch_mask(real):
            loss = model(PICTURES).square().sum()
        loss.backward()
        found.append((names, model.state_dict(), [p.grad for p in model.parameters()]))
    (names, *plainly), (saving_names, *savingly) = found
    assert len(names) == 2 * 20
    assert saving_names == names
    torch.testing.assert_close(savingly, plainly, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["resnet18", "transformer"])
def test_less_is_kept_for_the_backward_pass(name: str) -> None:
    make, x, _ = MODELS[name]
    plain, saving = pair(make, x)
    checkpoint_activations(saving)
    assert kept_bytes(saving, x) < 0.5 * kept_bytes(plain, x)


def kept_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Of all tensors that the forward pass saves, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(x)
    assert out.requires_grad
    return sum(size for place, size in storages.items() if place not in own)


def test_a_copy_runs_its_own_blocks() -> None:
    """Averaged weights (EMA) live in a copy of the model."""
    model = build_model("resnet18", 3, 8)
    checkpoint_activations(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        assert not other.eval()(PICTURES).any()
    other.train()(PICTURES).sum().backward()
    assert all(p.grad is None for p in model.parameters())


def test_evaluation_repeats_nothing() -> None:
    model = nn.Sequential(Block(), Block())
    checkpoint_activations(model)
    calls = []
    model[0].conv.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model.eval()(torch.randn(2, 4, 5, 5))
    assert len(calls) == 1


@pytest.mark.parametrize("model", [small_cnn(8, 3, 5), nn.Sequential(Block(), nn.ReLU())], ids=["small_cnn", "one"])
def test_a_model_without_repeated_blocks_is_refused(model: nn.Module) -> None:
    with pytest.raises(UsageError, match="The model Sequential has no repeated blocks"):
        checkpoint_activations(model)
