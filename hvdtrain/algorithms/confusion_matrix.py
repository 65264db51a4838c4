"""How often records of each class are taken for each class, and what follows from it for every class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError

MOST_CLASSES: Final = 10_000
"""A matrix of so many classes has 800 MB."""


Reduce = Callable[[NDArray[np.int64], Literal["sum", "max"]], NDArray[np.int64]]
"""An array of this rank → the reduction over all ranks' arrays, which have the same shape."""


def class_numbers(labels: NDArray[Any], what: str) -> NDArray[np.int64]:
    """The classes, int64 [n], of labels [n] or [n, 1] that are whole numbers, of any type. Args: `what` they are, for
    people. Raises UsageError: they are something else."""
    rows = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if rows.ndim == 1 and rows.dtype.kind in "biu":
        return rows.astype(np.int64)
    if rows.ndim == 1 and rows.dtype.kind == "f":
        exact = rows.astype(np.float64)
        if (abs(exact) < 2.0**53).all() and (exact == exact.round()).all():
            return exact.astype(np.int64)
    raise UsageError(
        f"{what} is {labels.dtype} of shape {labels.shape}{', not all of it whole' if rows.ndim == 1 else ''}.",
        "A confusion matrix counts numbers of classes, one for each record.",
        "give the number of the class, as argmax does of one-hot labels; or set label_feature to None.",
    )


class ConfusionMatrix:
    """Counts pairs of true and predicted class. It grows with the largest class that was seen."""

    def __init__(self) -> None:
        self.counts = np.zeros((0, 0), np.int64)
        """int64 [classes, classes]; row: true class, column: predicted class."""
        self.outside = 0
        """Records whose true or predicted class is none of 0 to MOST_CLASSES - 1; they are not in `counts`."""

    def add(self, true: NDArray[Any], predicted: NDArray[Any], classes: int = 0) -> None:
        """Count records, integer [n] each; `classes`: how many the model tells apart, where that is known."""
        pairs = np.stack([true, predicted]).astype(np.int64)
        inside = ((pairs >= 0) & (pairs < MOST_CLASSES)).all(axis=0)
        self.outside += int((~inside).sum())
        pairs = pairs[:, inside]
        self._grow(max(min(classes, MOST_CLASSES), int(pairs.max(initial=-1)) + 1))
        np.add.at(self.counts, tuple(pairs), 1)

    def reduced(self, reduce: Reduce) -> "ConfusionMatrix":
        """The sum over ranks. Collective, where `reduce` is."""
        total = ConfusionMatrix()
        self._grow(int(reduce(np.array([len(self.counts)], np.int64), "max")[0]))
        total.outside = int(reduce(np.array([self.outside], np.int64), "sum")[0])
        total.counts = reduce(self.counts, "sum") if self.counts.size else self.counts
        return total

    def _grow(self, classes: int) -> None:
        more = classes - len(self.counts)
        if more > 0:
            self.counts = np.pad(self.counts, ((0, more), (0, more)))


@dataclass(frozen=True)
class ClassValues:
    """Of one class; a quotient whose divisor is 0 is 0, as in scikit-learn."""

    precision: float  # share of the records that were taken for the class which are of it
    recall: float  # share of the class's records that were taken for it
    f1: float  # harmonic mean of both
    support: int  # records of the class


def class_values(counts: NDArray[np.int64]) -> list[ClassValues]:
    """Of each class, from a confusion matrix int64 [classes, classes]."""
    right, support, taken = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    precision, recall = right / np.maximum(taken, 1), right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + taken, 1)
    rows = zip(precision.tolist(), recall.tolist(), f1.tolist(), support.tolist(), strict=True)
    return [ClassValues(*row) for row in rows]
