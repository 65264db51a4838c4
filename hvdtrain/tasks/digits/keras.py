"""The digits in Keras 3 on TensorFlow: the same network as `hvdtrain.tasks.digits.torch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.models.keras.small_cnn import small_cnn
from hvdtrain.tasks.digits.data import CLASSES, SIDE, Digits


class KerasDigits(Digits):
    """A small CNN."""

    framework: ClassVar[str] = "tensorflow"

    def build_model(self) -> keras.Model:
        return small_cnn(SIDE, 1, CLASSES, self.width)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:
        return build_optimizer(model, lr, TrainingOptions(optimizer="adam"))  # as torch computes it

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["image"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits)
        right = tf.equal(tf.argmax(logits, axis=1), batch["label"])
        return {"loss": loss, "accuracy": tf.cast(right, tf.float32)}
