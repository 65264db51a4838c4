"""A mixture of torchvision's ImageFolder and of Hugging Face's pictures and texts, for `test_own_data.py`.

The folder of the data has `folder/CLASS/*.png`, and what `save_to_disk` has written: `pictures` and `texts`. Each
process notes what it has decoded, in a file whose name begins with the variable SEEN. HELD names a file that rank 1 of
two makes before it stays in a step until it is killed.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from data_sharding import Catalog, RecordBatch
from hvdtrain.engine.events import StepEnded
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task
from hvdtrain.topology import detect_topology

SIDE, WORDS, CLASSES = 8, 6, 2
HELD_STEP = 28

random_crop = transforms.Compose(
    [transforms.RandomCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.5)]
)


def cropped(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What Hugging Face's `with_transform` applies to the rows that are asked for."""
    return {**columns, "image": [random_crop(picture) for picture in columns["image"]]}


class Mixed(Task):
    """70 % of what an epoch draws are pictures of the folder, and 30 % are what is of Hugging Face."""

    framework = "torch"

    def open_data(self, data: DataAccess) -> Splits:
        names = ("image", "label")  # of an item of ImageFolder, which is a tuple; those of Hugging Face are dicts
        folder = ImageFolder(data.path("folder"), transform=random_crop)
        pictures = datasets.load_from_disk(data.path("pictures")).with_transform(cropped)
        texts = datasets.load_from_disk(data.path("texts"))
        of_hub = Catalog.concat(*(data.dataset(each, names=names, labels="label") for each in (pictures, texts)))
        of_folder = data.dataset(folder, names=names, labels="targets")
        return Splits(Catalog.mix({of_folder: 0.7, of_hub: 0.3}, epoch="all seen"))

    def decode(self, records: RecordBatch) -> Features:
        """ "image": float32 [n, 8, 8, 3], "tokens": int64 [n, 6], "label": int64 [n]."""
        items = [arrays_of(item) for item in records.payloads]
        arrays = {name: np.stack([item[name] for item in items]) for name in items[0]}
        with open(f"{os.environ['SEEN']}-{os.getpid()}", "a") as seen:
            for row, number in enumerate(records.ids):
                print(number, *(zlib.crc32(array[row].tobytes()) for array in arrays.values()), file=seen)
        return arrays

    def build_model(self) -> nn.Module:
        return Classifier()

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = model(batch["image"], batch["tokens"])
        return {"loss": nn.functional.cross_entropy(logits, batch["label"], reduction="none")}

    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        return [hold]


class Classifier(nn.Module):
    """The sum of what a picture says and of what the words of a text say."""

    def __init__(self) -> None:
        super().__init__()
        self.of_picture = nn.Linear(SIDE * SIDE * 3, CLASSES)
        self.of_words = nn.EmbeddingBag(256, CLASSES, mode="sum", padding_idx=0)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.of_picture(image.flatten(1) / 255) + self.of_words(tokens)
        return logits


def arrays_of(item: Any) -> dict[str, NDArray[Any]]:
    """An item of any of the three as arrays of the same shapes: zeros stand for a part that it does not have."""
    parts = item if isinstance(item, Mapping) else {"image": item[0], "label": item[1]}
    image = np.asarray(parts.get("image", np.zeros((SIDE, SIDE, 3))), np.float32)
    words = [1 + zlib.crc32(word.encode()) % 255 for word in parts.get("text", "").split()]
    tokens = np.array(words + [0] * (WORDS - len(words)))
    return {"image": image, "tokens": tokens, "label": np.array(parts["label"])}


def hold(event: Any) -> None:
    """Until it is killed, rank 1 of two stays in a step, and the other one waits for it."""
    worker = detect_topology(os.environ)
    if isinstance(event, StepEnded) and event.step == HELD_STEP and (worker.rank, worker.size) == (1, 2):
        Path(os.environ["HELD"]).touch()
        signal.pause()
