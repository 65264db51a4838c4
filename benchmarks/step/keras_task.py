"""hvdtrain's task in Keras 3 on TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from benchmarks.step import networks_keras
from benchmarks.step.tasks_common import StepTask


class KerasStep(StepTask):
    """As the hand-written arm: the same network, cross entropy, plain SGD."""

    framework = "tensorflow"

    def build_model(self) -> keras.Model:
        return networks_keras.build(self.model)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.SGD(lr)

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["x"])
        return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits)}
