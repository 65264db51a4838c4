"""Pictures made from the number of their record: to measure training without data, as Horovod's synthetic benchmark."""

from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from data_sharding import Catalog, RecordBatch
from data_sharding.atomic import atomic_file
from data_sharding.sample_random import GOLDEN, mix
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import TaskDefaults
from hvdtrain.tasks.pictures.picture_task import Labelled, Pictures

_OFFSETS: Final = 1 << 16  # as many different pictures


class Synthetic(Pictures):
    """Random pixels in 1,000 classes: a window of one long noise, which costs a copy. No data folder, no validation.

    Batches of 32, and SGD with lr 0.01 and no momentum, are those of Horovod's pytorch_synthetic_benchmark.py, whose
    protocol is that of `hvdtrain bench step`.

    Args:
        records: how many make an epoch.
        side: of the square pictures.
        classes: to which records belong by their number.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=1, global_batch_size=32, lr=0.01)
    opens_early: ClassVar[bool] = True
    mean = (0.5, 0.5, 0.5)
    std = (0.2887, 0.2887, 0.2887)  # of uniform noise
    momentum = 0.0

    def __init__(
        self,
        model: str = "resnet50",
        records: int = 3200,
        side: int = 224,
        classes: int = 1000,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if min(records, side, classes) < 1:
            raise UsageError(
                f"The task's arguments are records={records}, side={side} and classes={classes}.",
                "Each must be 1 or more.",
                "leave them out, or give larger numbers.",
            )
        super().__init__(model, classes, side, label_smoothing, mixup, weight_decay)
        self._records = records
        self._noise = np.random.default_rng(0).integers(0, 256, side * side * 3 + _OFFSETS, np.uint8)

    def open_train(self, data: DataAccess) -> Catalog:
        """A file of one byte a record in the cache, since records have to be somewhere."""
        return data.catalog(data.made_once(f"synthetic-{self._records}.npy", self._write))

    def open_test(self, data: DataAccess) -> None:  # noqa: ARG002
        return None

    def read(self, records: RecordBatch) -> Labelled:
        offsets = (mix(records.ids.astype(np.uint64) * GOLDEN) % np.uint64(_OFFSETS)).astype(np.int64)
        length = self.side * self.side * 3
        images = np.stack([self._noise[offset : offset + length] for offset in offsets.tolist()])
        return Labelled(images.reshape(-1, self.side, self.side, 3), records.ids % self.classes)

    def _write(self, path: Path) -> None:
        with atomic_file(path) as file:
            np.save(file, np.zeros((self._records, 1), np.uint8))
