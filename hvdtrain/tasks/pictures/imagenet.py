"""ImageNet (ILSVRC 2012), and any other photos kept like it: folders, tar shards or TFRecords."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from data_sharding import Catalog, RecordBatch
from data_sharding.augment import horizontal_flip
from data_sharding.errors import MissingDataError
from data_sharding.formats import class_names as names_of
from data_sharding.formats.image_folder import ImageFolderFormat
from data_sharding.storage import is_remote
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import TaskDefaults
from hvdtrain.tasks.pictures import photos
from hvdtrain.tasks.pictures.picture_task import Labelled, Pictures

_CLASSES: Final = 1000
_SHARDS: Final = (  # of a split's name
    ("{}-*.tar", "tar"),
    ("{}/*.tar", "tar"),
    ("{}-*.tfrecord*", "tfrecord"),
    ("{}-?????-of-?????", "tfrecord"),
    ("{}/*.tfrecord*", "tfrecord"),
)


class ImageNet(Pictures):
    """Random resized crops and flips in training, the middle of the photo in validation.

    `--data.dir` holds train/CLASS/*.JPEG and val/CLASS/*.JPEG; or train-*.tar and validation-*.tar (or val-*.tar) with
    members jpg and cls; or train-* and validation-* as TFRecords. Labels of folders are the sorted names' numbers.

    Goyal et al. 2017 (arXiv:1706.02677) for a ResNet-50: 90 epochs, lr 0.1 for batches of 256, weight decay 1e-4,
    warm-up of 5 epochs; here with a cosine. For larger batches: `--lr-scaling linear --reference-batch-size 256`.

    Args:
        side: of the square that the model sees.
        classes: default: as many as there are folders, or 1000.
        class_names: names of the classes' folders in the order of their labels; default: those of the training data,
            sorted. Data to validate on may lack some of them.
        first_label: the label of the first class in tar shards and TFRecords; default: 1 for TFRecords that name it
            image/class/label, as TensorFlow's own ImageNet does, else 0.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=90, global_batch_size=256, lr=0.1, warmup_epochs=5.0)
    opens_early: ClassVar[bool] = True
    needs_data_dir: ClassVar[bool] = True
    mean = (0.485, 0.456, 0.406)  # of torchvision's and most others' models
    std = (0.229, 0.224, 0.225)

    def __init__(
        self,
        model: str = "resnet50",
        side: int = 224,
        classes: int | None = None,
        first_label: int | None = None,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        weight_decay: float = 1e-4,
        class_names: Sequence[str] = (),
    ) -> None:
        if side < 1 or (classes is not None and classes < 2):
            raise UsageError(
                f"The task's arguments are side={side} and classes={classes}.",
                "A picture has a pixel at least, and there are two classes to tell apart.",
                "leave them out, or give larger numbers.",
            )
        if not (isinstance(class_names, list | tuple) and all(isinstance(name, str) for name in class_names)):
            raise UsageError(
                f"The task's argument class_names is {class_names!r}.",
                "It must be a list of names.",
                'give --task-args.class-names \'["cat", "dog"]\', for example.',
            )
        super().__init__(model, classes or len(class_names) or _CLASSES, side, label_smoothing, mixup, weight_decay)
        self._classes_given = classes is not None
        self._first_label = first_label
        self._folder_classes = tuple(class_names)
        self._format = ""
        photos.require_pillow()

    def open_train(self, data: DataAccess) -> Catalog:
        catalog = _found(data, ("train",), self._folder_classes)
        self._format = catalog.format.name
        if self._format == "image_folder":
            self._take_classes(names_of(catalog))
        return catalog

    def open_test(self, data: DataAccess) -> Catalog:
        return self._like_others(_found(data, ("validation", "val"), self._folder_classes))

    def open_files(self, data: DataAccess, pattern: str) -> Catalog:
        """Of tar shards or TFRecords, or of a folder that holds a folder of photos for each class."""
        folders = _class_folders(data, pattern, self._folder_classes)
        return self._like_others(data.catalog(pattern) if folders is None else folders)

    def _like_others(self, catalog: Catalog) -> Catalog:
        """`catalog`, whose labels mean the same as those of the records that were opened before."""
        if self._format and catalog.format.name != self._format:
            raise UsageError(
                f"Some photos are kept as {self._format}, and others, to validate on, as {catalog.format.name}.",
                "Their labels need not mean the same.",
                "keep both in the same way.",
            )
        self._format = catalog.format.name
        if self._format == "image_folder" and not self._folder_classes:  # pipe mode, or a checkpoint without names
            self._take_classes(names_of(catalog))
        return catalog

    def read(self, records: RecordBatch) -> Labelled:
        random = records.random
        draws = None if random is None else photos.CropDraws.of(random)
        images = np.empty((len(records), self.side, self.side, 3), np.uint8)
        labels = np.empty(len(records), np.int64)
        for row in range(len(records)):
            try:
                content, label, named = photos.encoded_picture(records, row, self._format)
                if draws is None:
                    images[row] = photos.validation_pixels(content, self.side)
                else:
                    images[row] = photos.training_pixels(content, self.side, draws, row)
            except photos.BadPhotoError as error:
                raise HvdtrainError(
                    f"The picture of {self.describe(records, row)} {error}.",
                    "The model cannot be shown it.",
                    "repair or remove that record.",
                ) from error
            labels[row] = label - (self._first_label if self._first_label is not None else named == photos.FROM_ONE)
        return Labelled(images if random is None else horizontal_flip(images, random), labels)

    def _take_classes(self, names: tuple[str, ...]) -> None:
        if self._classes_given and len(names) != self.classes:
            raise UsageError(
                f"There are {len(names)} folders of classes, and the task's argument classes is {self.classes}.",
                "Folders say how many classes there are.",
                "leave classes out.",
            )
        self._folder_classes, self.classes = names, len(names)
        found = {"classes": self.classes, "class_names": list(names)}
        takes = inspect.signature(type(self)).parameters  # a subclass may have a constructor of its own
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
        self.found = {name: value for name, value in found.items() if takes_any or name in takes}


def _class_folders(data: DataAccess, name: str, classes: tuple[str, ...]) -> Catalog | None:
    """What is in a folder of that name, if there is one; behind a URL, if there are photos."""
    root = data.path(name)
    folders = ImageFolderFormat(root=root, classes=classes)
    if not is_remote(root):
        return data.catalog(name, format=folders) if Path(root).is_dir() else None
    try:
        return data.catalog(name, format=folders)
    except MissingDataError:
        return None


def _found(data: DataAccess, names: tuple[str, ...], classes: tuple[str, ...]) -> Catalog:
    """The records of a split, in the first layout that is there."""
    for name in names:
        for pattern, record_format in _SHARDS:
            try:
                return data.catalog(pattern.format(name), format=record_format)
            except MissingDataError:
                continue
        folders = _class_folders(data, name, classes)
        if folders is not None:
            return folders
    looked_for = ", ".join(f"{n}/CLASS/*.JPEG, {n}-*.tar, {n}-*.tfrecord, {n}-00000-of-01024" for n in names)
    raise UsageError(
        f"{data.path('')} holds no photos to {'train' if 'train' in names else 'validate'} on.",
        f"Looked for were {looked_for}.",
        "download ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org, where one has to "
        "register, and unpack each class into a folder of its own, or convert with `hvdtrain shard convert`.",
    )
