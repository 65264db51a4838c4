"""The digits in Keras 3 on TensorFlow: the same network as `hvdtrain.tasks.digits.torch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import layers

from hvdtrain.task import Features, Splits, Task, TaskDefaults
from hvdtrain.tasks.digits.data import CLASSES, SIDE, decode_digits, open_digits
from hvdtrain.tasks.digits.defaults import DEFAULTS


class KerasDigits(Task):
    """A small CNN. Args: `width`: channels of the first convolution."""

    framework: ClassVar[str] = "tensorflow"
    defaults: ClassVar[TaskDefaults] = DEFAULTS

    def __init__(self, width: int = 32) -> None:
        self._width = width

    def open_data(self, data_dir: Path | None, cache_dir: Path) -> Splits:
        return open_digits(data_dir, cache_dir)

    def decode(self, records: Sequence[bytes]) -> Features:
        return decode_digits(records)

    def build_model(self) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Conv2D(self._width, 3, padding="same", activation="relu", name="conv1"),
                layers.Conv2D(2 * self._width, 3, padding="same", activation="relu", name="conv2"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(128, activation="relu", name="hidden"),
                layers.Dense(CLASSES, name="logits"),
            ],
            name="digits",
        )

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.Adam(lr)

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["image"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits)
        right = tf.equal(tf.argmax(logits, axis=1), batch["label"])
        return {"loss": loss, "accuracy": tf.cast(right, tf.float32)}
