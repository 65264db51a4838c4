"""CIFAR-10 and MNIST, from their own files: in the data folder, as archives unpack or as torchvision downloads.

CIFAR-10 (Krizhevsky 2009) is 60,000 pictures of 32×32 pixels in 10 classes. MNIST (LeCun et al. 1998) is 70,000
handwritten digits; data sets in the same files, such as Fashion-MNIST, can be read too.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from filelock import FileLock, Timeout

from data_sharding import Catalog, RecordBatch
from data_sharding.augment import horizontal_flip, random_crop
from data_sharding.formats import decode_cifar10, decode_mnist
from data_sharding.formats.cifar10 import Cifar10Format
from data_sharding.formats.mnist import MnistFormat
from data_sharding.storage import is_remote
from hvdtrain.errors import UsageError
from hvdtrain.models import SMALL_CNN
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import TaskDefaults
from hvdtrain.tasks.pictures.picture_task import Labelled, Pictures, labels_beside

_SECONDS: Final = 3600.0  # that a download may take
_DOWNLOAD: Final = "import sys; from hvdtrain.models.torchvision_import import download; download(*sys.argv[1:])"
"""In a process of its own, so that a TensorFlow worker does not import torch."""


@dataclass(frozen=True)
class Origin:
    """A data set as its makers publish it."""

    name: str  # what people call it
    folders: tuple[str, ...]  # below the data folder, "" for itself, where its files may be
    files: tuple[str, ...]  # one of these is there wherever the data set is
    archives: str  # what to download
    url: str  # the page that has it
    dataset: str  # its class in torchvision.datasets


CIFAR10 = Origin(
    name="CIFAR-10",
    folders=("", "cifar-10-batches-py", "cifar-10-batches-bin"),
    files=("data_batch_1", "data_batch_1.bin"),
    archives="cifar-10-python.tar.gz or cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar.html",
    dataset="CIFAR10",
)
MNIST = Origin(
    name="MNIST",
    folders=("", "MNIST/raw"),
    files=("train-images-idx3-ubyte", "train-images.idx3-ubyte"),
    archives="the four files of MNIST (train-images-idx3-ubyte.gz, …), each by gunzip,",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    dataset="MNIST",
)
_SIDE = 28
_FRAME = 2  # of black pixels, on each side: 28 become 32, which every model takes


class Cifar10(Pictures):
    """Random crops of a padding of 4, and flips.

    The usual recipe for a ResNet-18 on CIFAR-10 (github.com/kuangliu/pytorch-cifar: SGD with momentum 0.9, weight decay
    5e-4, lr 0.1 for batches of 128, cosine, 200 epochs: about 95 %), cut to 30 epochs, with one of warm-up.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=30, global_batch_size=128, lr=0.1, warmup_epochs=1.0)
    needs_data_dir: ClassVar[bool] = True
    can_download: ClassVar[bool] = True
    opens_early: ClassVar[bool] = True
    mean = (0.4914, 0.4822, 0.4465)  # of the 50,000 training pictures
    std = (0.2470, 0.2435, 0.2616)

    def __init__(
        self, model: str = "resnet18", label_smoothing: float = 0.0, mixup: float = 0.0, weight_decay: float = 5e-4
    ) -> None:
        super().__init__(model, 10, 32, label_smoothing, mixup, weight_decay)

    def open_train(self, data: DataAccess) -> Catalog:
        return data.catalog(folder_with(data, CIFAR10), format=Cifar10Format(split="train"))

    def open_test(self, data: DataAccess) -> Catalog:
        return data.catalog(folder_with(data, CIFAR10), format=Cifar10Format(split="test"))

    def open_files(self, data: DataAccess, pattern: str) -> Catalog:
        return data.catalog(pattern, format=Cifar10Format(split="test"))

    def read(self, records: RecordBatch) -> Labelled:
        images = decode_cifar10(records)["image"]
        if records.random is not None:
            images = horizontal_flip(random_crop(images, records.random, padding=4), records.random)
        return Labelled(images, labels_beside(records))


class Mnist(Pictures):
    """Random crops of a padding of 2 in training. Grey is shown to models as three equal channels.

    The defaults are hvdtrain's own choice: SGD with momentum 0.9 and lr 0.05 for batches of 128.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=5, global_batch_size=128, lr=0.05, warmup_epochs=0.5)
    needs_data_dir: ClassVar[bool] = True
    can_download: ClassVar[bool] = True
    opens_early: ClassVar[bool] = True
    mean = (0.1307, 0.1307, 0.1307)  # of the 60,000 training pictures without their frame
    std = (0.3081, 0.3081, 0.3081)

    def __init__(
        self, model: str = SMALL_CNN, label_smoothing: float = 0.0, mixup: float = 0.0, weight_decay: float = 1e-4
    ) -> None:
        super().__init__(model, 10, _SIDE + 2 * _FRAME, label_smoothing, mixup, weight_decay)

    def open_train(self, data: DataAccess) -> Catalog:
        return _of_right_size(data.catalog(folder_with(data, MNIST), format=MnistFormat(split="train")))

    def open_test(self, data: DataAccess) -> Catalog:
        return _of_right_size(data.catalog(folder_with(data, MNIST), format=MnistFormat(split="test")))

    def open_files(self, data: DataAccess, pattern: str) -> Catalog:
        return _of_right_size(data.catalog(pattern, format=MnistFormat(split="test")))

    def read(self, records: RecordBatch) -> Labelled:
        grey = decode_mnist(records)["image"][..., None]
        framed = np.pad(grey, ((0, 0), (_FRAME, _FRAME), (_FRAME, _FRAME), (0, 0)))
        if records.random is not None:
            framed = random_crop(framed, records.random, padding=_FRAME)
        return Labelled(np.repeat(framed, 3, axis=3), labels_beside(records))


def _of_right_size(catalog: Catalog) -> Catalog:
    wrong = np.flatnonzero(catalog.lengths != _SIDE * _SIDE)
    if wrong.size:
        raise UsageError(
            f"The picture at {catalog.describe(int(wrong[0]))} has {catalog.lengths[wrong[0]]} pixels.",
            f"Those of MNIST and its look-alikes have {_SIDE}×{_SIDE}.",
            "convert them, or read them by a task of your own (data_sharding.formats.decode_mnist takes any shape).",
        )
    return catalog


def folder_with(data: DataAccess, origin: Origin) -> str:
    """The path or URL of the folder that holds the data set's files. Behind a URL nothing is looked for.

    Raises `UsageError`: it is nowhere where it may be, nor can it be downloaded; says which file to put where.
    """
    root = data.path("")
    if is_remote(root):
        return root
    by_hand = f"unpack {origin.archives} from {origin.url} in it"
    if data.download and _present(root, origin) is None:
        _download(origin.dataset, root, by_hand)
    present = _present(root, origin)
    if present is not None:
        return present
    below = ", ".join(f"{folder}/" for folder in origin.folders if folder)
    raise UsageError(
        f"{root} does not hold {origin.name}: no {' or '.join(origin.files)} in it or in {below}.",
        "There is nothing to train on.",
        f"{by_hand}, or give --data.download where there is a network.",
    )


def _present(root: str, origin: Origin) -> str | None:
    candidates = [Path(root) / folder for folder in origin.folders]
    return next((str(path) for path in candidates if any((path / name).is_file() for name in origin.files)), None)


def _download(dataset: str, folder: str, by_hand: str) -> None:
    """Runs torchvision's download into `folder`, which exists, unless another worker just does."""
    argv = [sys.executable, "-c", _DOWNLOAD, dataset, folder]
    cause: Exception | None = None
    try:
        with FileLock(f"{folder}/.download.lock", timeout=_SECONDS):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode == 0:
            return
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (Timeout, subprocess.TimeoutExpired) as error:
        why, cause = f"it took more than {_SECONDS:.0f} s", error
    except OSError as error:
        why, cause = str(error), error
    raise UsageError(
        f"The data set {dataset} cannot be downloaded: {why.rstrip('.')}.",
        "--data.download asks torchvision for it, which needs a network.",
        f"{by_hand}, and leave --data.download out.",
    ) from cause
