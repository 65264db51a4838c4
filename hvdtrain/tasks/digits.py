"""Handwritten digits: scikit-learn's bundled copy of the UCI optical-recognition test set, 1,797 images of 8×8 pixels.

Small, real, and always at hand: the task that `hvdtrain` trains when nothing else is asked for. The records are in
TFRecord shards in the user's cache, which the first worker writes once.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, RecordBatch, write_shards
from data_sharding.example import decode, encode
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task, TaskDefaults

SIDE = 8
CLASSES = 10
SHARDS = 4
_SPLIT_SEED = 1797
_VERSION = "digits-v1"  # changes whenever the files' content would


def open_split(data: DataAccess, split: str) -> Catalog:
    """The catalog of `SPLIT-*.tfrecord`, "train" or "validation", in the data folder; or in the cache, made if need be.
    Raises MissingDataError: it is not in the data folder; UsageError: as `DataAccess.made_once`."""
    folder = data.dir if data.dir is not None else str(data.made_once(_VERSION, _write))
    # Checked wholly: the data is small, and damage is found before anything is trained.
    return data.catalog(f"{folder}/{split}-*.tfrecord", check_data=True)


class Digits(Task):
    """What the digits are in every framework. Args: `width`: channels of the first convolution."""

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=12, global_batch_size=48, lr=2e-3, warmup_epochs=1.0)
    opens_early: ClassVar[bool] = True
    label_feature: ClassVar[str | None] = "label"

    def __init__(self, width: int = 32) -> None:
        if width < 1:
            fact = f"The task's argument width is {width}."
            raise UsageError(fact, "It is a number of channels.", "give a positive number, such as 32.")
        self.width = width

    def open_data(self, data: DataAccess) -> Splits:
        return Splits(open_split(data, "train"), open_split(data, "validation"))

    def open_validation(self, data: DataAccess) -> Catalog:
        return open_split(data, "validation")

    def decode(self, records: RecordBatch) -> Features:
        """ "image": float32 [n, 8, 8, 1] in 0…1, "label": int64 [n]."""
        examples = [decode(record) for record in records]
        pixels = np.frombuffer(b"".join(example["image"][0] for example in examples), np.uint8)
        images = pixels.reshape(len(records), SIDE, SIDE, 1).astype(np.float32) / np.float32(16)
        return {"image": images, "label": np.array([example["label"][0] for example in examples], np.int64)}

    def example(self) -> Features:
        return {"image": np.zeros((2, SIDE, SIDE, 1), np.float32), "label": np.zeros(2, np.int64)}


def _write(folder: Path) -> None:
    """Write both splits to a neighbour and rename it, so that `folder` is complete whenever it exists."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    held_out = len(order) // 5
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for split, chosen in (("validation", order[:held_out]), ("train", order[held_out:])):
            write_shards(temporary, split, _records(digits.images[chosen], digits.target[chosen]), SHARDS)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _records(images: NDArray[Any], labels: NDArray[Any]) -> Iterable[bytes]:
    for image, label in zip(images.astype(np.uint8), labels, strict=True):
        yield encode({"image": image.tobytes(), "label": int(label)})
