"""What is made of a model's output, the same for every framework: labels and probabilities of a classification."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.confusion_matrix import ConfusionMatrix
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task


def predicted_values(adapter: Adapter, task: Task, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
    """What `Task.predict` describes, for all rows of a batch. Raises UsageError: the model of a classification returns
    no logits [n, classes]."""
    predictions = adapter.predict_step(batch)
    if task.label_feature is None or "label" in predictions:
        return predictions
    logits = predictions.pop("output", np.empty(0))
    if logits.ndim != 2 or logits.dtype.kind != "f":
        raise UsageError(
            f"The model of {type(task).__name__} returns {logits.dtype} of shape {logits.shape}.",
            "The logits of a classification are floats of shape [n, classes].",
            f"let {type(task).__name__}.predict(model, batch) return 'label', or set label_feature to None.",
        )
    return {"label": logits.argmax(axis=1), "probability": _softmax(logits), **predictions}


def _softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


class Confusions:
    """Counts this rank's part of a set's confusion matrix, batch by batch."""

    def __init__(self, adapter: Adapter, task: Task, label_feature: str) -> None:
        self._adapter, self._task, self._label = adapter, task, label_feature
        self.matrix = ConfusionMatrix()

    def add(self, batch: LoadedBatch) -> None:
        """Count the records of a batch, without those that are damaged or fill it up."""
        if self._label not in batch.features:
            raise UsageError(
                f"{type(self._task).__name__}.decode() gives no {self._label!r}.",
                "It is the task's label_feature, and without labels there is no confusion matrix.",
                "set label_feature to the name of the labels, or to None.",
            )
        predicted, real = predicted_values(self._adapter, self._task, batch), batch.weights > 0
        classes = predicted["probability"].shape[1] if "probability" in predicted else 0
        self.matrix.add(batch.features[self._label][real], predicted["label"][real], classes)
