"""What a callback or measure() may do to a torch model in training: see docs/user-code.md, row by row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.numpy_training import CLASSES, WIDTH, Data, Run, Setting, train
from support.torch_training import LR, TorchRows, open_torch
from torch import nn
from torch.nn import functional

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.algorithms.ema import kept_share
from hvdtrain.checkpoints.format import Position
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.named_arrays import State
from hvdtrain.set_names import UNNAMED
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers

EPOCHS, STEPS_PER_EPOCH = 3, 3
Change = Callable[["Watched"], object]


class Watched(TorchRows):
    """Notes in which mode its layers are when measure() begins."""

    def __init__(self, **options: Any) -> None:
        super().__init__("SGD", dropout=0.0, **options)
        self.modes: list[tuple[bool, ...]] = []
        self.in_measure: Change = lambda _: None

    def build_model(self) -> nn.Module:
        self.model = super().build_model()
        return self.model

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if torch.is_grad_enabled():
            self.modes.append(tuple(module.training for module in self.model.modules()))
        measures = super().measure(model, batch)
        self.in_measure(self)
        return measures


@pytest.fixture
def trained(data: Data, tmp_path: Path) -> Callable[..., Run]:
    """Trains `task`; `change` is called at each event of the kind `when`."""

    def run(task: Watched, when: type[Any], change: Change, validate: bool = False) -> Run:
        def callback(event: events.Event) -> None:
            if isinstance(event, when):
                change(task)

        sets = (UNNAMED,) if validate else ()
        setting = Setting(data, tmp_path, task=task, callbacks=(callback,), sets=sets, open_adapter=open_torch)
        return train(setting, SerialCommunicator(Topology.single()), RunLimits(EPOCHS), None, None)

    return run


@pytest.mark.parametrize("when", [events.RunStarted, events.EpochStarted, events.StepEnded, events.EpochEnded])
@pytest.mark.parametrize("validate", [True, False])
def test_a_callback_that_calls_eval_does_not_end_training_mode(
    trained: Callable[..., Run], when: type[Any], validate: bool
) -> None:
    task = Watched()
    trained(task, when, lambda task: task.model.eval(), validate)
    assert task.modes
    assert all(all(modes) for modes in task.modes)


def test_a_measure_that_calls_eval_at_its_end_does_not_end_training_mode(trained: Callable[..., Run]) -> None:
    task = Watched()
    task.in_measure = lambda task: task.model.eval()
    trained(task, events.RunStarted, lambda _: None)
    assert all(all(modes) for modes in task.modes)


@pytest.mark.parametrize("validate", [True, False])
def test_a_layer_that_is_put_into_evaluation_mode_stays_so_until_the_epoch_ends(
    trained: Callable[..., Run], validate: bool
) -> None:
    """So that a callback at each EpochStarted keeps BatchNorm's statistics as they are, with validation or without."""
    always, once = Watched(), Watched()
    trained(always, events.EpochStarted, lambda task: task.model[1].eval(), validate)
    assert {modes[2] for modes in always.modes} == {False}
    assert {modes[:2] for modes in always.modes} == {(True, True)}
    trained(once, events.RunStarted, lambda task: task.model[1].eval(), validate)
    assert {modes[2] for modes in once.modes} == {True}


class Head(Watched):
    """Only the last layer is trained, until a callback unfreezes the first one."""

    def build_model(self) -> nn.Module:
        self.model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))
        self.model[0].requires_grad_(False)
        return self.model


def batch_of(seed: int) -> LoadedBatch:
    random = np.random.default_rng(seed)
    features = {"x": random.normal(size=(6, WIDTH)).astype(np.float32), "label": random.integers(0, CLASSES, 6)}
    return LoadedBatch(seed, np.arange(6), np.ones(6, np.float32), features, 6.0)


OPTIONS = {
    "of the task": TrainingOptions(),
    "adamw": TrainingOptions(optimizer="adamw", weight_decay=0.1, max_grad_norm=0.1, ema_decay=0.9),
    "accumulated": TrainingOptions(optimizer="sgd", accumulate_steps=2),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer_that_is_unfrozen_between_epochs_trains_as_in_torch(name: str) -> None:
    """With a new gradient in each step, under clipping and the average of the weights too."""
    task, options = Head(momentum=0.9), OPTIONS[name]
    adapter = TorchAdapter(task, Topology.single(), 1, LR, options)
    plain: Any = copy.deepcopy(task.model)
    twin = optimizer_of(task, plain, LR, options)
    averages = {name: p.detach().clone() for name, p in plain.named_parameters()}
    for step in range(6):
        if step == 3:
            task.model[0].requires_grad_(True)
            plain[0].requires_grad_(True)
            adapter.take_changes(SerialCommunicator(Topology.single()))
        batch = batch_of(step)
        adapter.train_step(batch, step, LR)
        twin.zero_grad()
        label = torch.from_numpy(batch.features["label"])
        functional.cross_entropy(plain(torch.from_numpy(batch.features["x"])), label).backward()  # type: ignore[no-untyped-call]
        if options.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), options.max_grad_norm)
        twin.step()
        for parameter, average in zip(plain.parameters(), averages.values(), strict=True):
            average.lerp_(parameter.detach(), 1 - kept_share(0.9, step))
    state = adapter.state()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(torch.from_numpy(state[f"model/{key}"]), parameter.detach(), rtol=1e-5, atol=1e-6)
        if options.ema_decay is not None:
            torch.testing.assert_close(torch.from_numpy(state[f"ema/{key}"]), averages[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [None, VirtualWorkers(2, 0, 1, 6)])
def test_a_layer_that_is_frozen_where_another_is_unfrozen_can_be_trained_again(workers: VirtualWorkers | None) -> None:
    """Which layers take turns is the same as in a loop by hand."""
    task, options = Head(), TrainingOptions(optimizer="sgd", momentum=0.0, virtual_workers=workers and workers.count)
    adapter = TorchAdapter(task, Topology.single(), 1, LR, options, workers=workers)
    plain: Any = copy.deepcopy(task.model)
    for step, trained in enumerate([2, 0, 2]):
        for layer in (0, 2):
            task.model[layer].requires_grad_(layer == trained)
            plain[layer].requires_grad_(layer == trained)
        adapter.take_changes(SerialCommunicator(Topology.single()))
        batch = batch_of(step)
        adapter.train_step(batch, step, LR)
        label = torch.from_numpy(batch.features["label"])
        functional.cross_entropy(plain(torch.from_numpy(batch.features["x"])), label).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in plain[trained].parameters():
                parameter.sub_(LR * parameter.grad)
                parameter.grad = None
    state = adapter.state()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(torch.from_numpy(state[f"model/{key}"]), parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_resumed_run_trains_an_unfrozen_layer_as_one_that_was_not_interrupted(data: Data, tmp_path: Path) -> None:
    options = OPTIONS["adamw"]

    def run(folder: str, start: Position | None, state: State | None, last: int | None) -> Run:
        task = Head()

        def callback(event: events.Event) -> None:
            if isinstance(event, events.EpochStarted) and event.epoch >= 1:
                task.model[0].requires_grad_(True)  # type: ignore[operator]

        def opened(task: Any, comm: Any, seed: int) -> TorchAdapter:
            return TorchAdapter(task, comm.topology, seed, LR, options)

        setting = Setting(data, tmp_path / folder, task=task, callbacks=(callback,), open_adapter=opened)
        return train(setting, SerialCommunicator(Topology.single()), RunLimits(EPOCHS, last), start, state)

    whole = run("whole", None, None, None).adapter.state()
    stopped = run("parts", None, None, 5)  # in the second epoch
    position = Position(5, stopped.outcome.samples_seen)
    resumed = run("more", position, stopped.adapter.state(), None).adapter.state()
    assert any(name.startswith("ema/0.weight") for name in whole)
    assert {n: a.tobytes() for n, a in whole.items()} == {n: a.tobytes() for n, a in resumed.items()}


def test_a_layer_that_is_frozen_moves_no_more(trained: Callable[..., Run]) -> None:
    """Its momentum neither, nor weight decay."""
    task = Watched(momentum=0.9, weight_decay=0.1)
    seen: list[torch.Tensor] = []

    def freeze(task: Watched) -> None:
        task.model[0].requires_grad_(False)
        seen.append(task.model[0].weight.detach().clone())

    trained(task, events.EpochStarted, freeze)
    assert len(seen) == EPOCHS
    assert all(torch.equal(weight, seen[0]) for weight in seen)
    trained_first = Watched(momentum=0.9, weight_decay=0.1)
    after: list[torch.Tensor] = []

    def freeze_in_the_middle(task: Watched) -> None:
        if len(after) > 1:
            task.model[0].requires_grad_(False)
        after.append(task.model[0].weight.detach().clone())

    trained(trained_first, events.StepEnded, freeze_in_the_middle)
    assert not torch.equal(after[0], after[1])
    assert all(torch.equal(weight, after[2]) for weight in after[2:])
