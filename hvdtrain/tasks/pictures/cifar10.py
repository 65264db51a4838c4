"""CIFAR-10 (Krizhevsky 2009): 60,000 pictures of 32×32 pixels in 10 classes, from its own files."""

from __future__ import annotations

from typing import ClassVar

from data_sharding import Catalog, RecordBatch
from data_sharding.augment import horizontal_flip, random_crop
from data_sharding.formats import decode_cifar10
from data_sharding.formats.cifar10 import Cifar10Format
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.interface import TaskDefaults
from hvdtrain.tasks.pictures.files import Origin, folder_with
from hvdtrain.tasks.pictures.task import Labelled, Pictures, labels_beside

ORIGIN = Origin(
    name="CIFAR-10",
    folders=("", "cifar-10-batches-py", "cifar-10-batches-bin"),
    files=("data_batch_1", "data_batch_1.bin"),
    archives="cifar-10-python.tar.gz or cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar.html",
    dataset="CIFAR10",
)


class Cifar10(Pictures):
    """Random crops of a padding of 4, and flips.

    The usual recipe for a ResNet-18 on CIFAR-10 (github.com/kuangliu/pytorch-cifar: SGD with momentum 0.9, weight decay
    5e-4, lr 0.1 for batches of 128, cosine, 200 epochs: about 95 %), cut to 30 epochs, with one of warm-up.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=30, global_batch_size=128, lr=0.1, warmup_epochs=1.0)
    needs_data_dir: ClassVar[bool] = True
    can_download: ClassVar[bool] = True
    mean = (0.4914, 0.4822, 0.4465)  # of the 50,000 training pictures
    std = (0.2470, 0.2435, 0.2616)

    def __init__(
        self, model: str = "resnet18", label_smoothing: float = 0.0, mixup: float = 0.0, weight_decay: float = 5e-4
    ) -> None:
        super().__init__(model, 10, 32, label_smoothing, mixup, weight_decay)

    def open_train(self, data: DataAccess) -> Catalog:
        return data.catalog(folder_with(data, ORIGIN), format=Cifar10Format(split="train"))

    def open_test(self, data: DataAccess) -> Catalog:
        return data.catalog(folder_with(data, ORIGIN), format=Cifar10Format(split="test"))

    def read(self, records: RecordBatch) -> Labelled:
        images = decode_cifar10(records)["image"]
        if records.random is not None:
            images = horizontal_flip(random_crop(images, records.random, padding=4), records.random)
        return Labelled(images, labels_beside(records))
