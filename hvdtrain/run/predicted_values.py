"""What is made of a model's output, the same for every framework: labels and probabilities of a classification."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.confusion_matrix import ConfusionMatrix, class_numbers
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

NO_CLASS: Final = -1
"""The label of a record whose logits are NaN."""


def predicted_values(adapter: Adapter, task: Task, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
    """What `Task.predict` describes, for all rows of a batch. Raises UsageError: as `described` and `predict_step`."""
    return described(task, adapter.predict_step(batch))


def described(task: Task, predictions: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """`predictions`; of a classification with its labels and probabilities in the place of logits. Raises UsageError:
    there are no logits [n, classes], no values, or ones that are no numbers."""
    name = type(task).__name__
    for column, values in predictions.items():
        if values.dtype.kind not in "biuf":
            raise UsageError(
                f"What {name} predicts as {column!r} is of the type {values.dtype}.",
                "Predictions are written as whole numbers, floats and truth values.",
                f"let {name}.predict(model, batch) return numbers, as the number of a class instead of its name.",
            )
        if 0 in values.shape[1:]:
            raise UsageError(
                f"What {name} predicts as {column!r} has the shape {values.shape}.",
                "There is no value for a record.",
                f"leave {column!r} out.",
            )
    if task.label_feature is None or "label" in predictions:
        return predictions
    if "output" not in predictions:
        raise UsageError(
            f"{name}.predict() returns {', '.join(map(repr, predictions))}, and neither 'label' nor 'output'.",
            f"The task is a classification, as its label_feature is {task.label_feature!r}.",
            "let it return 'label' or logits as 'output' too, or set label_feature to None.",
        )
    logits = predictions.pop("output")
    if logits.ndim != 2 or logits.dtype.kind != "f":
        raise UsageError(
            f"The model of {name} returns {logits.dtype} of shape {logits.shape}.",
            "The logits of a classification are floats of shape [n, classes].",
            f"let {name}.predict(model, batch) return 'label', or set label_feature to None.",
        )
    labels = np.where(np.isnan(logits).any(axis=1), NO_CLASS, logits.argmax(axis=1))
    return {"label": labels, "probability": _softmax(logits), **predictions}


def _softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


class Confusions:
    """Counts this rank's part of a set's confusion matrix, batch by batch."""

    def __init__(self, adapter: Adapter, task: Task, label_feature: str) -> None:
        self._adapter, self._task, self._label = adapter, task, label_feature
        self.matrix = ConfusionMatrix()

    def measure(self, batch: LoadedBatch) -> None:
        """As `Adapter.eval_step`; and count the records of the batch, without those that are damaged or fill it up."""
        if self._label not in batch.features:
            raise UsageError(
                f"{type(self._task).__name__}.decode() gives no {self._label!r}.",
                "It is the task's label_feature, and without labels there is no confusion matrix.",
                "set label_feature to the name of the labels, or to None.",
            )
        predicted, real = described(self._task, self._measured(batch)), batch.weights > 0
        classes = predicted["probability"].shape[1] if "probability" in predicted else 0
        name = type(self._task).__name__
        true = class_numbers(
            np.asarray(batch.features[self._label])[real], f"{self._label!r}, the label_feature of {name},"
        )
        self.matrix.add(true, class_numbers(predicted["label"][real], f"'label', which {name} predicts,"), classes)

    def _measured(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        if type(self._task).predict is Task.predict:
            return self._adapter.eval_with_output(batch)
        self._adapter.eval_step(batch)
        return self._adapter.predict_step(batch)
