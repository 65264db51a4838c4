"""The built-in tasks in Keras 3 on TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.optimizers import build_optimizer
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.models.keras import zoo
from hvdtrain.models.keras.zoo import transformer
from hvdtrain.tasks.digits import CLASSES, SIDE, Digits
from hvdtrain.tasks.pictures.cifar10_mnist import Cifar10, Mnist
from hvdtrain.tasks.pictures.imagenet import ImageNet
from hvdtrain.tasks.pictures.picture_task import Pictures
from hvdtrain.tasks.pictures.synthetic import Synthetic
from hvdtrain.tasks.text import NOTHING, SYMBOLS, Text


class KerasDigits(Digits):
    """The digits by a small CNN."""

    framework: ClassVar[str] = "tensorflow"

    def build_model(self) -> keras.Model:
        return zoo.small_cnn(SIDE, 1, CLASSES, self.width)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:
        return build_optimizer(model, lr, TrainingOptions(optimizer="adam"))  # as torch computes it

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["image"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits)
        right = tf.equal(tf.argmax(logits, axis=1), batch["label"])
        return {"loss": loss, "accuracy": tf.cast(right, tf.float32)}


class KerasText(Text):
    """Text by a transformer, trained by AdamW."""

    framework: ClassVar[str] = "tensorflow"

    def build_model(self) -> keras.Model:
        return transformer(SYMBOLS, self.context, self.width, self.heads, self.blocks, self.pack)

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:
        return build_optimizer(
            model, lr, TrainingOptions(optimizer="adamw", beta2=0.95, weight_decay=self.weight_decay)
        )

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ "loss": nats a byte; "accuracy": share of bytes that the model would have guessed."""
        inputs = self.inputs(batch)
        logits, following = model(inputs if self.pack else inputs[0]), batch["next"]
        real = tf.cast(following != NOTHING, tf.float32)
        count = tf.reduce_sum(real, axis=1)
        labels = tf.maximum(following, 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = tf.cast(tf.equal(tf.argmax(logits, axis=2), following), tf.float32)
        return {"loss": tf.reduce_sum(losses * real, axis=1) / count, "accuracy": tf.reduce_sum(right, axis=1) / count}


class KerasPictures(Pictures):
    """Pictures by ResNets as in torchvision or Keras applications, trained by SGD with momentum."""

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
