"""What a callback or measure() may do to a torch model in training: see docs/user-code.md, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy_training import Data, Run, Setting, train
from torch import nn
from torch_training import TorchRows, open_torch

from hvdtrain.comm.interface import SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.interface import RunLimits
from hvdtrain.topology import Topology

EPOCHS = 3
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

        setting = Setting(data, tmp_path, task=task, callbacks=(callback,), validate=validate, open_adapter=open_torch)
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
