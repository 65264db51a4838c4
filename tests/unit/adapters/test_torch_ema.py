"""The average of a torch model's weights is the closed formula, and swapping it in leaves no trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hvdtrain.adapters.torch.update import TorchWeightAverage
from hvdtrain.algorithms.ema import kept_share
from hvdtrain.errors import UsageError


def test_the_share_that_stays_grows_to_the_decay() -> None:
    assert [kept_share(0.99, step) for step in (0, 1, 8, 90, 10**6)] == pytest.approx([0.1, 2 / 11, 0.5, 0.91, 0.99])
    assert kept_share(0.0, 5) == 0.0


def weights_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def move(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


@given(decay=st.floats(0, 0.9999), steps=st.integers(0, 12))
@settings(max_examples=20)
def test_the_average_is_the_closed_formula(decay: float, steps: int) -> None:
    """Weight k counts (1 - d_k) · Π d_j over later updates j; what the model began with counts the product of all."""
    model = network()
    average = TorchWeightAverage(model, decay)
    seen, shares = [weights_of(model)], [min(decay, (1 + step) / (10 + step)) for step in range(steps)]
    for step in range(steps):
        move(model, step)
        seen.append(weights_of(model))
        average.update(step)
    counts = [
        (1.0 if place == 0 else 1 - shares[place - 1]) * float(np.prod(shares[place:])) for place in range(steps + 1)
    ]
    assert sum(counts) == pytest.approx(1)
    for name, array in average.state().items():
        expected = sum(count * one[name.removeprefix("ema/")] for count, one in zip(counts, seen, strict=True))
        np.testing.assert_allclose(array, expected, rtol=1e-10, atol=1e-12)


def averaged() -> tuple[nn.Sequential, TorchWeightAverage]:
    model = network()
    average = TorchWeightAverage(model, 0.9)
    for step in range(3):
        move(model, step)
        average.update(step)
    return model, average


def test_swapped_is_the_average_inside_and_the_weights_after() -> None:
    model, average = averaged()
    before, addresses = weights_of(model), [p.data_ptr() for p in model.parameters()]
    kept = average.state()
    with average.swapped():
        for name, array in weights_of(model).items():
            np.testing.assert_array_equal(array, kept[f"ema/{name}"])
    for name, array in weights_of(model).items():
        np.testing.assert_array_equal(array, before[name])
    assert [p.data_ptr() for p in model.parameters()] == addresses  # views of them, and compiled graphs, stay good
    for name, array in average.state().items():
        np.testing.assert_array_equal(array, kept[name])


def test_an_exception_brings_the_weights_back() -> None:
    model, average = averaged()
    before = weights_of(model)
    with pytest.raises(KeyError), average.swapped():
        raise KeyError("validation failed")
    for name, array in weights_of(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_buffers_and_frozen_weights_stay_the_model_s() -> None:
    model = network()
    model[2].weight.requires_grad_(False)
    assert sorted(TorchWeightAverage(model, 0.9).state()) == [
        "ema/0.bias",
        "ema/0.weight",
        "ema/1.bias",
        "ema/1.weight",
        "ema/2.bias",
    ]


def test_a_shared_weight_has_one_average() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    average = TorchWeightAverage(model, 0.0)
    move(model, 1)
    average.update(0)
    assert list(average.state()) == ["ema/0.weight"]
    before = weights_of(model)
    with average.swapped():
        assert model[1].weight is model[0].weight
    np.testing.assert_array_equal(model[1].weight.detach().numpy(), before["0.weight"])


def test_a_restored_average_goes_on_as_the_first_would(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    model, average = averaged()
    save_file({**average.state(), "model/other": np.zeros(1)}, tmp_path / "state.safetensors")
    other = TorchWeightAverage(model, 0.9)
    other.load_state(load_file(tmp_path / "state.safetensors"))
    move(model, 9)
    for one in (average, other):
        one.update(3)
    for name, array in average.state().items():
        np.testing.assert_array_equal(other.state()[name], array)


def test_without_a_saved_average_it_starts_from_the_weights() -> None:
    model, average = averaged()
    average.load_state({"model/0.weight": np.zeros((4, 3))})
    for name, array in weights_of(model).items():
        np.testing.assert_array_equal(average.state()[f"ema/{name}"], array)


def test_a_state_is_a_copy() -> None:
    model, average = averaged()
    state = average.state()
    kept = {name: array.copy() for name, array in state.items()}
    move(model, 5)
    average.update(3)
    for name, array in state.items():
        np.testing.assert_array_equal(array, kept[name])


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_the_average_of_another_model_is_refused(change: str) -> None:
    _, average = averaged()
    state = average.state()
    if change == "missing":
        del state["ema/0.weight"]
    elif change == "unexpected":
        state["ema/9.weight"] = np.zeros(1)
    else:
        state["ema/0.weight"] = np.zeros((2, 2))
    with pytest.raises(UsageError, match=r"saved averages .* do not fit the model") as refused:
        average.load_state(state)
    assert ("9.weight" if change == "unexpected" else "0.weight") in refused.value.conflict
