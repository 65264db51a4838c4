"""`local_sgd_checks` in torch, and what only torch has: gradients that a rank has none of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from linear_training import LR, WIDTH, NoData
from local_sgd_checks import Ranks, check_all
from torch import nn

from hvdtrain.config.training_options import TrainingOptions


class Linear(NoData):
    framework = "torch"

    def build_model(self) -> nn.Module:
        return nn.Linear(WIDTH, 1, bias=False)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch["x"])[:, 0] - batch["y"]).square()}


class Unused(Linear):
    """Its second layer, with filters in an unusual layout, is used by ranks with two rows or more."""

    def build_model(self) -> nn.Module:
        model = nn.ModuleDict({"first": nn.Linear(WIDTH, 1), "second": nn.Conv2d(2, 3, 2)})
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        inner = getattr(model, "module", model)
        predicted = inner["first"](batch["x"])[:, 0]
        if len(predicted) > 1:
            predicted = predicted + inner["second"](torch.ones(1, 2, 2, 2)).sum()
        return {"loss": (predicted - batch["y"]).square()}


class WithUnused(Ranks):
    """Instead of the linear task, on an open communicator."""

    def __init__(self, ranks: Ranks) -> None:
        vars(self).update(vars(ranks))
        self.task = Unused()


def check_parameter_without_gradient(ranks: Ranks) -> None:
    """Ranks have the same slots even so, and average those of Adam."""
    ranks = WithUnused(ranks)
    adapter = ranks.open(TrainingOptions(sync_every=2))
    before = adapter.state()["model/second.weight"].copy()
    for end in (1, 2, 3):
        ranks.train(adapter, end - 1, end)
        ranks.average_weights(adapter)
        state = adapter.state()
        for name in ("model/second.weight", "optimizer/second.weight/exp_avg_sq", "optimizer/second.weight/step"):
            assert not ranks.differ(state[name]), name
        assert float(state["optimizer/second.weight/step"]) == end
    assert abs(state["model/second.weight"] - before).max() > LR / 10


torch.set_num_threads(1)
check_all(Linear(), check_parameter_without_gradient)
