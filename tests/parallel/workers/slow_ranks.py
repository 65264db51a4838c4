"""The digits in torch, where rank 1 is slow: in decoding, or because a control group limits its processor or disk."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import nn

from data_sharding import RecordBatch
from hvdtrain.engine import events
from hvdtrain.task.task import Features
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import detect_topology

_DECODE_SECONDS = 0.3  # several times what a step takes on a machine that has much else to do
_READ_BYTES = 2**17
_IS_SLOW = detect_topology(os.environ).rank == 1


class SlowInput(TorchDigits):
    """Each batch of rank 1 takes its time."""

    def decode(self, records: RecordBatch) -> Features:
        if _IS_SLOW:
            time.sleep(_DECODE_SECONDS)
        return super().decode(records)


class Throttled(TorchDigits):
    """Rank 1 enters the control group in LIMITED_GROUP. Rank 0 asks for a stop when one is found to be slow."""

    stops = True

    def callbacks(self) -> list[events.Callback]:
        return [self._stop] if self.stops else []

    @staticmethod
    def _stop(event: events.Event) -> None:
        if isinstance(event, events.StragglerFound) and event.straggler.rank == 1 and not _IS_SLOW:
            os.kill(os.getpid(), signal.SIGUSR1)

    def build_model(self) -> nn.Module:
        if _IS_SLOW:
            Path(os.environ["LIMITED_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        return super().build_model()


class SlowDisk(Throttled):
    """And for each batch it reads from COLD_FILE, which is not in memory."""

    stops = False

    def decode(self, records: RecordBatch) -> Features:
        if _IS_SLOW:
            with open(os.environ["COLD_FILE"], "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert len(file.read(_READ_BYTES)) == _READ_BYTES
        return super().decode(records)
