"""An adapter whose model is in stages on this process: it is the whole model's adapter in every respect."""

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
from hvdtrain.adapters.torch.pipeline.staged_model import keep_state_of
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology


class Drawing(TorchRows):
    """measure() draws random numbers, before and after it calls the model; a layer draws too."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES))

    def measure(self, model: Any, batch: Any) -> Any:
        order = torch.randperm(len(batch["x"]))
        measures = super().measure(model, {"x": batch["x"][order], "label": batch["label"][order]})
        return {**measures, "first": order[:1].expand(len(order)).float()}


def batch_of(rows: int, seed: int = 0) -> LoadedBatch:
    random = np.random.default_rng(seed)
    features: dict[str, Any] = {
        "x": random.normal(size=(rows, WIDTH)).astype(np.float32),
        "label": random.integers(0, CLASSES, rows),
    }
    return LoadedBatch(0, np.arange(rows), np.ones(rows, np.float32), features, float(rows))


def adapter_of(task: TorchRows, stages: int = 2, micro_batches: int = 2) -> TorchAdapter:
    if stages == 1:
        return TorchAdapter(task, Topology.single(), 1, LR, TrainingOptions(accumulate_steps=micro_batches))
    parallel = ParallelOptions(stages, ",".join(["cpu"] * stages), micro_batches)
    return TorchAdapter(task, Topology.single(), 1, LR, TrainingOptions(parallel=parallel), cuts=[2])


def test_what_measure_draws_is_the_same_before_and_after_the_stages() -> None:
    """Else inputs and labels would be those of different orders."""
    found = []
    for stages in (1, 2):
        adapter = adapter_of(Drawing(), stages)
        for step in range(3):
            adapter.train_step(batch_of(8, step), step, LR)
        found.append(adapter.read_sums().values["first"])
    assert found[0] == found[1]


@pytest.mark.parametrize("stages", [1, 2])
def test_the_time_of_an_evaluation_is_no_step_s(stages: int) -> None:
    adapter = adapter_of(Drawing(), stages)
    adapter.train_step(batch_of(8), 0, LR)
    adapter.read_sums()
    adapter.eval_step(batch_of(8))
    assert not any(adapter._timer._own)
    assert not any(adapter.read_sums().parts.values())


def test_layers_without_weights_follow_training_and_evaluation() -> None:
    adapter = adapter_of(Drawing())
    adapter.train_step(batch_of(8), 0, LR)
    assert all(module.training for stage in adapter._mode._modules for module in stage.modules())
    adapter.eval_step(batch_of(8))
    assert not any(module.training for stage in adapter._mode._modules for module in stage.modules())


def test_a_stage_keeps_the_optimizer_s_state_of_its_own_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["params"] = own = list(model[1].parameters())
    keep_state_of({id(parameter) for parameter in own}, optimizer)
    assert set(optimizer.state_dict()["state"]) == {0, 1}
