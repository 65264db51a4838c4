"""Text in Keras 3 on TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.models.keras.transformer import transformer
from hvdtrain.tasks.text.data import NOTHING, SYMBOLS, Text


class KerasText(Text):
    """A transformer, trained by AdamW."""

    framework: ClassVar[str] = "tensorflow"

    def build_model(self) -> keras.Model:
        return transformer(SYMBOLS, self.context, self.width, self.heads, self.blocks)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:
        return build_optimizer(
            model, lr, TrainingOptions(optimizer="adamw", beta2=0.95, weight_decay=self.weight_decay)
        )

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ "loss": nats a byte; "accuracy": share of bytes that the model would have guessed."""
        logits, following = model(batch["seen"]), batch["next"]
        real = tf.cast(following != NOTHING, tf.float32)
        count = tf.reduce_sum(real, axis=1)
        labels = tf.maximum(following, 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = tf.cast(tf.equal(tf.argmax(logits, axis=2), following), tf.float32)
        return {"loss": tf.reduce_sum(losses * real, axis=1) / count, "accuracy": tf.reduce_sum(right, axis=1) / count}
