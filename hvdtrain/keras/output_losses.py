"""The losses that a model of several outputs logs for each of them: means over samples."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import keras
import tensorflow as tf


def weigh_by_samples(model: Any) -> None:
    """Let the logged loss of each output be the mean over samples, as that of the whole model is.

    Keras 3 weights each batch's value by the batch size that it knows while the step is traced, which is mostly none. A
    mean of the batches' means comes out, which depends on how the samples are cut into batches.
    """
    loss = getattr(model, "_compile_loss", None)
    if loss is None or isinstance(vars(loss).get("call"), _CountingCall):
        return
    # Not by setattr: as in `hvdtrain.keras.optimizer`.
    vars(loss).update(call=_CountingCall(loss))
    for step in ("train", "test"):  # what is traced already has the old weights
        if getattr(model, f"{step}_function") is not None:
            getattr(model, f"make_{step}_function")(force=True)


@final
class _CountingCall:
    """Stands in for one compiled loss's `call`, and tells the metrics of single outputs how many samples there are."""

    def __init__(self, loss: Any) -> None:
        self._call, self._build = loss.call, loss.build
        self._samples: Any = None
        self._take_over(loss.metrics)
        vars(loss).update(build=partial(self._built, loss))

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self._samples = tf.shape(keras.tree.flatten(y_pred)[0])[0]
        return self._call(y_true, y_pred, sample_weight)

    def _built(self, loss: Any, y_true: Any, y_pred: Any) -> None:
        self._build(y_true, y_pred)  # which makes the metrics, in the first step
        self._take_over(loss.metrics)

    def _take_over(self, metrics: Any) -> None:
        for metric in metrics:
            vars(metric).update(update_state=partial(self._update, metric.update_state))

    def _update(self, update: Any, values: Any, sample_weight: Any = None) -> None:
        update(values, sample_weight=self._samples if sample_weight is None else sample_weight)
