"""hvdtrain's task: the whole engine runs, with shuffled records from a file, metrics and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import hvdtrain
from benchmarks.overhead.problem import BATCH, LR, Clock, decode, model, optimizer_of, records
from data_sharding import RecordBatch
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import Features


class Overhead(hvdtrain.Task):
    """One epoch; a step ends with its event."""

    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=1, global_batch_size=BATCH, lr=LR)

    def open_data(self, data: DataAccess) -> hvdtrain.Splits:
        path = data.cache_dir.absolute() / "overhead-benchmark.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, records())
        return hvdtrain.Splits(train=data.catalog(path))

    def decode(self, batch: RecordBatch) -> Features:
        return decode(batch)

    def build_model(self) -> nn.Module:
        return model()

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:  # noqa: ARG002
        return optimizer_of(model)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": functional.mse_loss(model(batch["x"])[:, 0], batch["y"], reduction="none")}

    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        clock = Clock()

        def on_event(event: Any) -> None:
            if isinstance(event, hvdtrain.events.StepEnded):
                clock.step()

        return [on_event]
