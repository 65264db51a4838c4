"""The confusion matrix and the values of each class are scikit-learn's, however the records are divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from hvdtrain.algorithms.confusion_matrix import ConfusionMatrix, class_numbers, class_values
from hvdtrain.errors import UsageError


def _by_two(array: Any, op: str) -> Any:
    return 2 * array if op == "sum" else array


def test_counts_and_values_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    true, predicted = random.integers(0, 6, 500), random.integers(0, 5, 500)  # class 5 is never predicted
    matrix = ConfusionMatrix()
    for part in np.array_split(np.arange(500), 7):
        matrix.add(true[part], predicted[part])
    assert (matrix.counts == confusion_matrix(true, predicted)).all()
    expected = precision_recall_fscore_support(true, predicted, zero_division=0)
    np.testing.assert_allclose([vars(v)["f1"] for v in class_values(matrix.counts)], expected[2])
    np.testing.assert_allclose([v.precision for v in class_values(matrix.counts)], expected[0])
    np.testing.assert_allclose([v.recall for v in class_values(matrix.counts)], expected[1])
    assert (matrix.reduced(_by_two).counts == 2 * matrix.counts).all()


def test_labels_that_are_no_class_are_counted_apart() -> None:
    matrix = ConfusionMatrix()
    matrix.add(np.array([0, -1, 10**9]), np.array([0, 0, 0]), classes=3)
    assert (matrix.counts.shape, matrix.counts.sum(), matrix.outside) == ((3, 3), 1, 2)
    assert ConfusionMatrix().reduced(_by_two).counts.shape == (0, 0)


@pytest.mark.parametrize(
    "labels", [np.array([[0], [2]]), np.array([0.0, 2.0]), np.array([0, 2], np.uint8), np.array([0, 2], np.float16)]
)
def test_labels_are_whole_numbers_of_any_type(labels: NDArray[Any]) -> None:
    assert class_numbers(labels, "'y'").tolist() == [0, 2]


@pytest.mark.parametrize(
    "labels",
    [np.eye(3), np.array([0.9, 2]), np.array([np.nan]), np.array(["a"]), np.zeros((2, 1, 1)), np.array([1e30])],
)
def test_others_are_refused(labels: NDArray[Any]) -> None:
    with pytest.raises(UsageError, match="'y' is "):
        class_numbers(labels, "'y'")
