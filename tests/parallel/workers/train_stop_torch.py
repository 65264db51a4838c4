"""The digits in torch, stopped as `train_stop_tasks` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from train_stop_tasks import reach, reach_step

from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features
from hvdtrain.tasks.torch import TorchDigits


class Stopped(TorchDigits):
    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        return [reach_step]

    def open_data(self, data: DataAccess) -> Splits:
        reach("open_data")
        return super().open_data(data)

    def build_model(self) -> nn.Module:
        reach("build_model")
        return super().build_model()

    def decode(self, records: Sequence[bytes]) -> Features:
        reach("decode")
        return super().decode(records)
