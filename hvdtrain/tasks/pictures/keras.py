"""Pictures in Keras 3 on TensorFlow: ResNets as in torchvision, Keras applications, SGD with momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.models.keras import zoo
from hvdtrain.tasks.pictures.cifar10 import Cifar10
from hvdtrain.tasks.pictures.imagenet import ImageNet
from hvdtrain.tasks.pictures.mnist import Mnist
from hvdtrain.tasks.pictures.synthetic import Synthetic
from hvdtrain.tasks.pictures.task import Pictures


class KerasPictures(Pictures):
    """The half that needs Keras and TensorFlow."""

    framework: ClassVar[str] = "tensorflow"

    @classmethod
    def model_names(cls) -> Sequence[str]:
        return zoo.model_names()

    def build_model(self) -> keras.Model:
        return zoo.build_model(self.model, self.classes, self.side)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:
        options = TrainingOptions(
            optimizer="sgd", momentum=self.momentum, weight_decay=self.weight_decay, decay_norm_and_bias=True
        )
        return build_optimizer(model, lr, options)

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        labels = batch["label"]
        logits = model(self._normalized(model, batch["image"]))
        if "target" in batch:
            loss = tf.nn.softmax_cross_entropy_with_logits(labels=batch["target"], logits=logits)
        else:
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        # How many classes the model prefers to the right one: the same for ties in both frameworks.
        right = tf.gather(logits, labels, batch_dims=1)
        before = tf.math.count_nonzero(logits > right[:, None], axis=1)
        return {"loss": loss, "accuracy": tf.cast(before < 1, tf.float32), "top5": tf.cast(before < 5, tf.float32)}

    def _normalized(self, model: keras.Model, images: Any) -> Any:
        """uint8 [n, H, W, 3] to float32: normalized, or 0…255 for models that normalize themselves."""
        pixels = tf.cast(images, tf.float32)
        if zoo.takes_raw_pixels(model):
            return pixels
        mean, std = (tf.constant(values) * 255 for values in (self.mean, self.std))
        return (pixels - mean) / std


class KerasCifar10(KerasPictures, Cifar10):
    """CIFAR-10 in Keras."""


class KerasMnist(KerasPictures, Mnist):
    """MNIST in Keras."""


class KerasImageNet(KerasPictures, ImageNet):
    """Photos in Keras."""


class KerasSynthetic(KerasPictures, Synthetic):
    """Random pixels in Keras."""
