"""The rows of `user_code_rows` that are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from support.numpy_training import CLASSES, WIDTH
from support.torch_training import TorchRows
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import HvdtrainError
from hvdtrain.topology import Topology

Row = tuple[Callable[[Any], object], Callable[[], object]]


class Rows(TorchRows):
    """With a frozen layer, of which the optimizer does not know the bias."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, CLASSES))
        model[0].requires_grad_(False)
        return model

    def build_optimizer(self, model: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam([model[0].weight, *model[1:].parameters()], lr=lr)


def batch() -> LoadedBatch:
    features = {"x": np.ones((4, WIDTH), np.float32), "label": np.zeros(4, np.int64)}
    return LoadedBatch(0, np.arange(4), np.ones(4, np.float32), features, 4.0)


seed = torch.manual_seed
_inference = torch.inference_mode()


def _nothing() -> None:
    pass


def _row(change: Callable[[Any], object], undo: Callable[[], object] = _nothing) -> Row:
    return change, undo


def _replace(model: nn.Sequential) -> None:
    model[3] = nn.Linear(4, CLASSES)


REFUSED: Final[dict[str, Row]] = {
    "unfrozen, unknown to the optimizer": _row(lambda a: a.model[0].requires_grad_(True)),
    "module replaced": _row(lambda a: _replace(a.model)),
    "module added": _row(lambda a: a.model.append(nn.Linear(CLASSES, CLASSES))),
    "module removed": _row(lambda a: a.model.pop(3)),
    "buffer added": _row(lambda a: a.model.register_buffer("count", torch.zeros(1))),
    "dtype of the model": _row(lambda a: a.model.double()),
    "learning rate": _row(lambda a: a.optimizer.param_groups[0].update(lr=1.0)),
    "group added": _row(lambda a: a.optimizer.add_param_group({"params": [a.model[0].bias]})),
    "group removed": _row(lambda a: a.optimizer.param_groups.clear()),
    "default dtype": _row(
        lambda _: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    ),
    "default device": _row(lambda _: torch.set_default_device("meta"), lambda: torch.set_default_device("cpu")),
    "determinism": _row(
        lambda _: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
    ),
    "matmul precision": _row(
        lambda _: torch.set_float32_matmul_precision("medium"), lambda: torch.set_float32_matmul_precision("highest")
    ),
    "grad mode": _row(lambda _: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "inference mode": _row(lambda _: _inference.__enter__(), lambda: _inference.__exit__(None, None, None)),
}


def _opened() -> TorchAdapter:
    return TorchAdapter(Rows(), Topology.single(), 1, 0.1, TrainingOptions())


def _refused_in_step(change: Callable[[Any], object], undo: Callable[[], object] = _nothing) -> str:
    """What a training step says."""
    adapter = _opened()
    adapter.train_step(batch(), 0, 0.1)
    change(adapter)
    try:
        adapter.train_step(batch(), 1, 0.1)
    except HvdtrainError as error:
        return error.fact
    finally:
        undo()
    return ""


def _measured_and_scheduled() -> str:
    """What is said where only the schedule changes the rate, and in tuning, which puts the state back."""
    adapter = _opened()
    before = adapter.state()
    try:
        for rate in (0.0, 0.1, 0.05):
            adapter.train_step(batch(), 0, rate)
            adapter.load_state(before)
    except HvdtrainError as error:
        return error.fact
    return ""


def _hooks() -> list[str]:
    called: list[str] = []
    adapter = _opened()
    adapter.model.register_forward_hook(lambda *_: called.append("module"))
    adapter.model[3].weight.register_hook(lambda _: called.append("gradient"))  # type: ignore[index]
    adapter.optimizer.register_step_post_hook(lambda *_: called.append("optimizer"))
    adapter.train_step(batch(), 0, 0.1)
    return called


def _numbers_of_groups() -> bool:
    """Whether what is set in a group acts from the next step on."""
    adapter = _opened()
    before = adapter.model[3].weight.detach().clone()  # type: ignore[index, operator]
    adapter.optimizer.param_groups[0].update(betas=(0.0, 0.0), eps=1e12)
    adapter.train_step(batch(), 0, 0.1)
    return bool(torch.allclose(before, adapter.model[3].weight, atol=1e-9))  # type: ignore[index, arg-type]


def _gradients_left() -> bool:
    """Whether a gradient that a callback has left is a part of the next step's."""
    adapters = [_opened(), _opened()]
    biases: list[Any] = [adapter.model[3].bias for adapter in adapters]  # type: ignore[index]
    biases[1].grad = torch.tensor([0.0, -100.0, 0.0])
    for adapter in adapters:
        adapter.train_step(batch(), 0, 0.1)
    return bool(biases[1][1] > biases[0][1])


def _threads() -> list[int]:
    """Before, asked for, and after a step."""
    before, adapter = torch.get_num_threads(), _opened()
    torch.set_num_threads(before + 1)
    adapter.train_step(batch(), 0, 0.1)
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    return [before + 1, after]


def more() -> dict[str, Any]:
    """Rows that are neither all refused when an epoch begins, nor without any effect."""
    in_step = {
        "grad mode": _refused_in_step(lambda _: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
        "unfrozen": _refused_in_step(lambda adapter: adapter.model[0].weight.requires_grad_(True)),
        "group added": _refused_in_step(lambda a: a.optimizer.add_param_group({"params": [a.model[0].bias]})),
        "learning rate": _refused_in_step(lambda a: a.optimizer.param_groups[0].update(lr=1.0)),
        "rates of the schedule": _measured_and_scheduled(),
    }
    return {
        "in_step": in_step,
        "hooks": _hooks(),
        "numbers_of_groups": _numbers_of_groups(),
        "gradients_left": _gradients_left(),
        "threads": _threads(),
    }
