"""A small torch model on the same records, with what makes resuming hard: dropout, BatchNorm and Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task
from support.numpy_training import CLASSES, WIDTH, NumpyTask, decode_rows

LR = 0.01


class TorchRows(Task):
    """Args: `optimizer` is a name in torch.optim, `options` its arguments."""

    framework: ClassVar[str] = "torch"

    def __init__(self, optimizer: str = "Adam", dropout: float = 0.3, **options: Any) -> None:
        self._optimizer, self._dropout, self._options = optimizer, dropout, options

    def open_data(self, data: DataAccess) -> Splits:
        return NumpyTask().open_data(data)

    def decode(self, records: Sequence[bytes]) -> Features:
        return decode_rows(records)

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(WIDTH, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(self._dropout),
            nn.Linear(16, CLASSES),
        )

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        kind: type[torch.optim.Optimizer] = getattr(torch.optim, self._optimizer)
        return kind(model.parameters(), lr=lr, **self._options)  # type: ignore[call-arg]

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = model(batch["x"])
        loss = functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}


def open_torch(task: Task, comm: Communicator, seed: int) -> TorchAdapter:
    return TorchAdapter(task, comm.topology, seed, LR, TrainingOptions())
