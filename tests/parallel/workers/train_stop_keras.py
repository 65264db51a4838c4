"""The digits in Keras, stopped as `train_stop_tasks` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from train_stop_tasks import reach, reach_step

from hvdtrain.task.task import Features
from hvdtrain.tasks.keras import KerasDigits


class Stopped(KerasDigits):
    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        return [reach_step]

    def decode(self, records: Sequence[bytes]) -> Features:
        reach("decode")
        return super().decode(records)
