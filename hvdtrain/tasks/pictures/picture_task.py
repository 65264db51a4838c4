"""What tasks of pictures have in common, in every framework: features, labels, targets, arguments."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, RecordBatch
from hvdtrain.errors import HvdtrainError, UsageError, did_you_mean
from hvdtrain.models import SMALL_CNN, uses_batch_norm
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task
from hvdtrain.tasks.pictures.mixup import Mixup, mix_pictures, mix_targets, smoothed_targets


class Labelled(NamedTuple):
    """Pictures uint8 [n, side, side, 3] in the range 0…255, and labels int64 [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Pictures(Task):
    """A classification of square RGB pictures.

    Pictures reach the device as bytes and are normalized there: a quarter of the traffic of float32, and no arithmetic
    in the threads that decode.

    Args:
        model: a name out of `model_names`.
        classes: labels are 0 to classes - 1.
        side: rows and columns of a picture, as the model sees it.
        label_smoothing: share of the target spread over all classes in training (Szegedy et al. 2015,
            arXiv:1512.00567, section 7).
        mixup: alpha of Zhang et al. 2017 (arXiv:1710.09412), 0: none; see `mixup`.
        weight_decay: of all weights, added to the gradient.
    """

    label_feature: ClassVar[str | None] = "label"

    mean: ClassVar[tuple[float, float, float]]
    """Of each channel over the training data, in 0…1."""
    std: ClassVar[tuple[float, float, float]]
    momentum: ClassVar[float] = 0.9
    """Of the task's own optimizer, SGD."""

    def __init__(
        self, model: str, classes: int, side: int, label_smoothing: float, mixup: float, weight_decay: float
    ) -> None:
        self._require_known(model)
        _require("label_smoothing", label_smoothing, 0 <= label_smoothing < 1, "a share from 0 to below 1", "0.1")
        _require("mixup", mixup, 0 <= mixup < float("inf"), "0 (none) or a positive number", "0.2")
        _require("weight_decay", weight_decay, 0 <= weight_decay < float("inf"), "0 or a positive number", "1e-4")
        self.model, self.classes, self.side = model, classes, side
        self.weight_decay = weight_decay
        self.smallest_slice = 2 if uses_batch_norm(model) else 1
        self._smoothing, self._alpha = label_smoothing, mixup
        self._mixup: Mixup | None = None

    @classmethod
    @abstractmethod
    def model_names(cls) -> Sequence[str]:
        """Every model that `--model` may name in this framework."""

    @abstractmethod
    def open_train(self, data: DataAccess) -> Catalog:
        """The records to train on. Raises UsageError or data_sharding.ShardingError: they are missing or damaged."""

    @abstractmethod
    def open_test(self, data: DataAccess) -> Catalog | None:
        """The records to validate on, after `open_train`, but for pipe mode, which has no catalog to train on. Raises
        as `open_train`."""

    @abstractmethod
    def read(self, records: RecordBatch) -> Labelled:
        """Pictures, augmented if `records.random` is there, and labels, which need not be checked."""

    def open_data(self, data: DataAccess) -> Splits:
        self._mixup = Mixup(self._alpha, data.on_corrupt, data.file_cache) if self._alpha else None
        return Splits(self.open_train(data), self.open_test(data))

    def open_validation(self, data: DataAccess) -> Catalog | None:
        self._require_no_mixup(data)
        return self.open_test(data)

    def open_files(self, data: DataAccess, pattern: str) -> Catalog:
        """The records of a set that the user names by its files. Raises as `open_train`."""
        return data.catalog(pattern)

    def open_set(self, data: DataAccess, pattern: str) -> Catalog:
        self._require_no_mixup(data)
        return self.open_files(data, pattern)

    def decode(self, records: RecordBatch) -> Features:
        """ "image": uint8 [n, side, side, 3]; "label": int64 [n]; and in training, where labels alone do not say what
        is to be learnt, "target": float32 [n, classes], which sum to 1.
        """
        images, labels = self._read_checked(records)
        if records.random is None or not (self._smoothing or self._mixup):
            return {"image": images, "label": labels}
        targets = smoothed_targets(labels, self.classes, self._smoothing)
        if self._mixup is not None:
            others, share = self._mixup.partners(records)
            other_images, other_labels = self._read_checked(others)
            images = mix_pictures(images, other_images, share)
            other_targets = smoothed_targets(other_labels, self.classes, self._smoothing)
            targets = mix_targets(targets, other_targets, share)
        return {"image": images, "label": labels, "target": targets}

    def example(self) -> Features:
        return {"image": np.zeros((2, self.side, self.side, 3), np.uint8), "label": np.zeros(2, np.int64)}

    def describe(self, records: RecordBatch, row: int) -> str:
        number = int(records.ids[row])
        return (
            f"record {number}" if records.catalog is None else f"record {number} ({records.catalog.describe(number)})"
        )

    def _require_no_mixup(self, data: DataAccess) -> None:
        if self._alpha and data.is_piped:
            raise UsageError(
                f"The task's argument mixup is {self._alpha:g} in pipe mode.",
                "The other picture of a pair is any record of the training data, and a pipe cannot be rewound.",
                "leave mixup out, or read files.",
            )

    def _require_known(self, model: str) -> None:
        if model == SMALL_CNN:  # without asking for the others, which imports torchvision
            return
        names = self.model_names()
        if model not in names:
            raise UsageError(
                f"There is no model {model!r} in {self.framework}.",
                "Nothing says what to train.",
                did_you_mean(model, names),
            )

    def _read_checked(self, records: RecordBatch) -> Labelled:
        images, labels = self.read(records)
        bad = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if bad.size:
            row = int(bad[0])
            raise HvdtrainError(
                f"The label of {self.describe(records, row)} is {labels[row]}.",
                f"There are {self.classes} classes, so labels are 0 to {self.classes - 1}.",
                "correct the data, or what the task is told of its classes.",
            )
        return Labelled(images, labels)


def labels_beside(records: RecordBatch) -> NDArray[np.int64]:
    """The labels int64 [n] that the format keeps beside the pictures."""
    if records.labels is None:
        raise ValueError("the format has no labels")
    return records.labels


def _require(name: str, value: float, holds: bool, what: str, example: str) -> None:
    if not holds:
        raise UsageError(f"The task's argument {name} is {value}.", f"It must be {what}.", f"try {example}.")
