"""The digits by a Keras model whose training pass reads what earlier passes have put into a variable."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from hvdtrain.tasks.digits import CLASSES, SIDE
from hvdtrain.tasks.keras import KerasDigits


class Centred(layers.Layer):
    """Subtracts the mean of earlier pictures."""

    def build(self, shape: Any) -> None:
        self.earlier = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="earlier")

    def call(self, images: Any, training: bool = False) -> Any:
        centred = images - self.earlier
        if training:
            self.earlier.assign(0.8 * self.earlier + 0.2 * ops.mean(images, 0))
        return centred


class Remembering(KerasDigits):
    def build_model(self) -> Any:
        return keras.Sequential(
            [keras.Input((SIDE, SIDE, 1)), Centred(name="centred"), layers.Flatten(), layers.Dense(CLASSES)],
            name="remembering",
        )
