"""A torch model and optimizer come back from named arrays as they were, and rank_local_state buffers are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.numpy_training import CLASSES, WIDTH
from support.torch_training import LR, TorchRows
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.optimizer_state import NAME
from hvdtrain.adapters.torch.state import drifting_buffers, load_state, read_state, require_own_parameters
from hvdtrain.algorithms import update_rules
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
    with pytest.raises(UsageError, match="Listing keeps 'history' as an instance of object"):
        read_state(model, optimizer)


class Shrinking(torch.optim.SGD):
    """Counts in a group and an attribute, and keeps an object."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.count, self.tracker = 0, Counter()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.count += 1
        self.param_groups[0]["d"] = self.count / 2


class Counter:
    """No number, and no tensor."""


def shrinking(**options: Any) -> tuple[nn.Module, Shrinking]:
    model = nn.Linear(3, 2)
    optimizer = Shrinking(model.parameters(), lr=LR, **options)
    require_own_parameters(model, optimizer)
    return model, optimizer


def test_a_resumed_optimizer_has_its_own_options_except_where_training_has_changed_them() -> None:
    model, optimizer = shrinking(momentum=0.5, weight_decay=0.1)
    one_step(model, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.25  # as a callback may do
    copied, other = shrinking(momentum=0.9, weight_decay=0.2)
    load_state(copied, other, read_state(model, optimizer))
    (group,) = other.param_groups
    assert (other.count, group["d"], group["momentum"], group["weight_decay"]) == (1, 0.5, 0.25, 0.2)


def test_what_an_earlier_state_does_not_have_is_as_it_was_at_the_start() -> None:
    """A measurement of steps puts back the state from before them."""
    model, optimizer = shrinking(momentum=0.5)
    before = read_state(model, optimizer)
    one_step(model, optimizer)
    load_state(model, optimizer, before)
    assert (optimizer.count, "d" in optimizer.param_groups[0]) == (0, False)


def test_numbers_of_a_group_that_is_not_there_are_not_lost_silently() -> None:
    model, optimizer = shrinking()
    optimizer.add_param_group({"params": [], "lr": LR})
    copied, other = shrinking()
    with pytest.raises(UsageError, match="in its parameter group 1. This one has 1 groups"):
        load_state(copied, other, read_state(model, optimizer))


def test_objects_that_an_optimizer_keeps_are_named_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = shrinking()
    one_step(model, optimizer)
    read_state(model, optimizer)
    assert caplog.messages == [
        "Shrinking keeps an instance of Counter in the attribute 'tracker': it is not saved in checkpoints."
    ]


@pytest.mark.parametrize("name", [*OPTIMIZERS, *update_rules.OPTIMIZERS])
def test_known_optimizers_keep_nothing_that_is_not_saved(name: Any, caplog: pytest.LogCaptureFixture) -> None:
    if name in OPTIMIZERS:
        task, options = TorchRows(name, **OPTIMIZERS[name]), TrainingOptions()
    else:
        task, options = TorchRows(), TrainingOptions(optimizer=name)
    adapter = TorchAdapter(task, Topology.single(), 1, LR, options)
    adapter.train_step(batch_of(0), 0, LR)
    assert NAME not in adapter.state()
    assert caplog.messages == []


def test_a_changed_buffer_that_is_not_saved_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("cache", torch.zeros(2), persistent=False)
    model.register_buffer("mask", torch.zeros(2), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    require_own_parameters(model, optimizer)
    read_state(model, optimizer)
    assert caplog.messages == []
    model.cache += 1  # type: ignore[operator]
    for _ in range(2):
        assert "model/cache" not in read_state(model, optimizer)
    (message,) = caplog.messages
    assert "'cache'" in message
    assert "persistent=False" in message


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


def test_what_differs_between_ranks_are_buffers_and_extra_states() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_buffer("held", torch.ones(2, dtype=torch.bfloat16))
    model.register_buffer("unsaved", torch.ones(2), persistent=False)
    buffers = drifting_buffers(model)
    assert sorted(buffers) == [
        *("model/1.num_batches_tracked", "model/1.running_mean", "model/1.running_var"),
        "model/held",
    ]
    assert buffers["model/held"].dtype == np.float32
    assert drifting_buffers(nn.Linear(3, 2)) == {}
