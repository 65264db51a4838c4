"""The digits in torch, where rank 1 is slow: in reading its input, or because a control group limits its processor."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import nn

from data_sharding import RecordBatch
from hvdtrain.task.interface import Features
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import detect_topology

_DECODE_SECONDS = 0.1
_IS_SLOW = detect_topology(os.environ).rank == 1


class SlowInput(TorchDigits):
    """Each batch of rank 1 takes its time."""

    def decode(self, records: RecordBatch) -> Features:
        if _IS_SLOW:
            time.sleep(_DECODE_SECONDS)
        return super().decode(records)


class Throttled(TorchDigits):
    """Rank 1 enters the control group in THROTTLED_GROUP."""

    def build_model(self) -> nn.Module:
        if _IS_SLOW:
            Path(os.environ["THROTTLED_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        return super().build_model()
