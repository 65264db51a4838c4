"""A torch model and optimizer come back from named arrays as they were, and rank_local_state buffers are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy_training import CLASSES, WIDTH
from torch import nn
from torch_training import LR, TorchRows

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.state import drifting_buffers, load_state, read_state
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "NAdam": {},
    "ASGD": {},
    "Rprop": {},
    "Adagrad": {},
}


def batch_of(seed: int) -> LoadedBatch:
    random = np.random.default_rng(seed)
    x = random.normal(size=(8, WIDTH)).astype(np.float32)
    return LoadedBatch(0, np.arange(8), np.ones(8, np.float32), {"x": x, "label": random.integers(0, CLASSES, 8)}, 8.0)


def trained(optimizer: str, steps: int) -> TorchAdapter:
    adapter = TorchAdapter(TorchRows(optimizer, **OPTIMIZERS[optimizer]), Topology.single(), 1, LR, TrainingOptions())
    for step in range(steps):
        adapter.train_step(batch_of(step), step, LR)
    return adapter


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_view_of_the_state_is_the_state_without_a_copy(optimizer: str) -> None:
    adapter = trained(optimizer, 2)
    copy, view = adapter.state(), adapter.view_state()
    assert copy.keys() == view.keys()
    assert all(copy[name].tobytes() == view[name].tobytes() for name in copy)
    adapter.train_step(batch_of(2), 2, LR)
    (weight, *_) = [name for name in view if name.startswith("model/")]
    assert view[weight].tobytes() == adapter.state()[weight].tobytes() != copy[weight].tobytes()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("through", ["memory", "file"])
def test_a_restored_optimizer_goes_on_as_the_first_would(optimizer: str, through: str) -> None:
    first, second = trained(optimizer, 3), trained(optimizer, 1)
    state = first.state()
    if through == "file":
        from safetensors.numpy import load, save

        state = load(save(state))
    second.load_state(state)
    for step in (3, 4):
        for adapter in (first, second):
            adapter.train_step(batch_of(step), step, LR)
    one, other = first.state(), second.state()
    assert one.keys() == other.keys()
    assert any(name.startswith("optimizer/") for name in one)
    for name, array in one.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            other[name].dtype,
            other[name].shape,
            other[name].tobytes(),
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_copy_uses_the_memory_of_an_earlier_one_again(optimizer: str) -> None:
    adapter = trained(optimizer, 1)
    earlier = adapter.state()
    places = {name: array.ctypes.data for name, array in earlier.items()}
    adapter.train_step(batch_of(1), 1, LR)
    fresh, again = adapter.state(), adapter.state(earlier)
    assert again.keys() == fresh.keys()
    for name, array in again.items():
        assert (array.shape, array.tobytes()) == (fresh[name].shape, fresh[name].tobytes())
        assert name.endswith("#number") or array.ctypes.data == places[name], name
    other = {name: array.astype(np.float16) for name, array in fresh.items()}  # nothing fits
    assert all(array.dtype == fresh[name].dtype for name, array in adapter.state(other).items())


class Counting(torch.optim.SGD):
    """Keeps Python numbers beside its tensors, as older optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["count"] = slots.get("count", 0) + 1
                slots["product"] = slots.get("product", 1.0) * 0.5
                slots["warm"] = slots["count"] > 1
                slots["nothing"] = None


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_numbers_come_back_as_numbers() -> None:
    model = nn.Linear(3, 2)
    optimizer = Counting(model.parameters(), lr=LR, momentum=0.9)
    for _ in range(2):
        one_step(model, optimizer)
    state = read_state(model, optimizer)
    copied = nn.Linear(3, 2)
    other = Counting(copied.parameters(), lr=LR, momentum=0.9)
    load_state(copied, other, state)
    slots = other.state[copied.weight]
    assert (slots["count"], slots["product"], slots["warm"]) == (2, 0.25, True)
    assert [type(slots[name]) for name in ("count", "product", "warm")] == [int, float, bool]
    torch.testing.assert_close(slots["momentum_buffer"], optimizer.state[model.weight]["momentum_buffer"])


class Listing(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            self.state[group["params"][0]]["history"] = [object()]


def test_an_optimizer_that_keeps_what_no_array_holds_is_refused() -> None:
    model = nn.Linear(3, 2)
    optimizer = Listing(model.parameters(), lr=LR)
    one_step(model, optimizer)
    with pytest.raises(UsageError, match="Listing keeps 'history' as a object"):
        read_state(model, optimizer)


def test_a_state_is_a_copy() -> None:
    adapter = trained("SGD", 1)
    state = adapter.state()
    kept = {name: array.tobytes() for name, array in state.items()}
    adapter.train_step(batch_of(1), 1, LR)
    assert {name: array.tobytes() for name, array in state.items()} == kept
    adapter.load_state(state)
    adapter.train_step(batch_of(1), 1, LR)
    assert {name: array.tobytes() for name, array in state.items()} == kept


def test_a_state_may_be_read_only() -> None:
    adapter = trained("Adam", 1)
    state = adapter.state()
    for array in state.values():
        array.setflags(write=False)
    adapter.load_state(state)
    adapter.train_step(batch_of(1), 1, LR)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_of_another_model_are_refused(change: str) -> None:
    adapter = trained("SGD", 1)
    state = adapter.state()
    if change == "missing":
        del state["model/0.weight"]
    elif change == "unexpected":
        state["model/9.weight"] = np.zeros(1, np.float32)
    else:
        state["model/0.weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(UsageError, match="saved weights do not fit"):
        adapter.load_state(state)


def test_tied_weights_come_back_tied() -> None:
    def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
        model[2].weight = model[0].weight
        return model, torch.optim.Adam(model.parameters(), lr=LR)

    model, optimizer = build()
    one_step(model, optimizer)
    copied, other = build()
    load_state(copied, other, read_state(model, optimizer))
    one_step(model, optimizer)
    one_step(copied, other)
    assert copied[2].weight is copied[0].weight
    torch.testing.assert_close(copied[0].weight, model[0].weight, rtol=0, atol=0)


def test_drifting_are_the_float_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    assert sorted(drifting_buffers(model)) == [
        "model/1.running_mean",
        "model/1.running_var",
        "model/3.running_mean",
        "model/3.running_var",
    ]
    assert drifting_buffers(nn.Linear(3, 2)) == {}
