"""The half of hvdtrain's task that knows no framework."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import hvdtrain
from benchmarks.step.workload import LR, RECORDS, inputs, labels
from data_sharding import RecordBatch
from hvdtrain.data_access import DataAccess
from hvdtrain.task import Features


class StepTask(hvdtrain.Task):
    """Noise that belongs to the record."""

    defaults = hvdtrain.TaskDefaults(epochs=1, lr=LR)

    def __init__(self, model: str = "mlp") -> None:
        self.model = model

    def open_data(self, data: DataAccess) -> hvdtrain.Splits:
        """A file of one byte a record, since records have to be somewhere."""
        path = Path(data.cache_dir).absolute() / "step-benchmark.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            with temporary.open("wb") as file:
                np.save(file, np.zeros((RECORDS, 1), np.uint8))
            temporary.replace(path)
        return hvdtrain.Splits(train=data.catalog(path))

    def decode(self, records: RecordBatch) -> Features:
        return {"x": inputs(self.model, records.ids), "y": labels(records.ids)}
