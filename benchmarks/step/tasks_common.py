"""The half of hvdtrain's task that knows no framework."""

from __future__ import annotations

import numpy as np
from filelock import FileLock

import hvdtrain
from benchmarks.step.workload import LR, RECORDS, inputs, labels
from data_sharding import RecordBatch
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import Features

_LOCK_SECONDS = 60.0


class StepTask(hvdtrain.Task):
    """Noise that belongs to the record."""

    defaults = hvdtrain.TaskDefaults(epochs=1, lr=LR)

    def __init__(self, model: str = "mlp") -> None:
        self.model = model

    def open_data(self, data: DataAccess) -> hvdtrain.Splits:
        """A file of one byte a record, since records have to be somewhere."""
        path = data.cache_dir.absolute() / "step-benchmark.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            if not path.exists():
                np.save(path, np.zeros((RECORDS, 1), np.uint8))
        return hvdtrain.Splits(train=data.catalog(path))

    def decode(self, records: RecordBatch) -> Features:
        return {"x": inputs(self.model, records.ids), "y": labels(records.ids)}
