"""`--init-weights` reads a file with the model that is trained, or a copy of it: a task builds one model only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology
from hvdtrain.weights.initial_weights import initial_state


class Noting(nn.Linear):
    """A layer that notes what it has loaded, in an object that is not part of a state."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.loaded: list[Any] = []

    def _load_from_state_dict(self, *args: Any) -> None:
        self.loaded.append(args)
        super()._load_from_state_dict(*args)


class Locked(nn.Linear):
    """A layer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.lock = threading.Lock()


def with_old_weight_norm() -> nn.Module:
    """Its weight is a tensor that torch has computed, which cannot be copied either."""
    return nn.utils.weight_norm(nn.Linear(3, 2))  # type: ignore[no-any-return]


class Kept(TorchDigits):
    """A task that keeps its model, as one does whose callbacks act on it."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(width=2)
        self.build, self.built = build, 0

    def build_model(self) -> nn.Module:
        self.built += 1
        self.kept = self.build()
        return self.kept

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("build", [Noting, Locked, with_old_weight_norm])
def test_the_model_that_a_task_keeps_is_the_trained_one(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Its first weights are the file's, and what is excluded keeps its values; only loading them changes the model."""
    saved = build().state_dict()
    torch.save(saved, tmp_path / "old.pt")
    task = Kept(build)
    adapter = TorchAdapter(task, Topology.single(), 1, 0.1, TrainingOptions())
    fresh_bias = adapter.state()["model/bias"]
    calls = adapter.model.register_forward_hook(lambda *_: None)
    state = initial_state(adapter.view_state(), tmp_path / "old.pt", task, "bias", adapter.model)
    assert not getattr(adapter.model, "loaded", [])
    adapter.load_state(state)
    assert (task.built, task.kept is adapter.model, list(adapter.model._forward_hooks)) == (1, True, [calls.id])
    for name, array in adapter.state().items():
        if name.startswith("model/"):
            expected = fresh_bias if name == "model/bias" else saved[name.removeprefix("model/")].numpy()
            np.testing.assert_array_equal(array, expected)


def test_a_task_without_a_whole_model_builds_another_one_and_keeps_the_first(tmp_path: Path) -> None:
    """As a worker that has one stage of a pipeline."""
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "old.pt")
    task = Kept(lambda: nn.Linear(3, 2))
    model = task.build_model()
    initial_state({f"model/{n}": t.numpy() for n, t in model.state_dict().items()}, tmp_path / "old.pt", task)
    assert task.kept is model
