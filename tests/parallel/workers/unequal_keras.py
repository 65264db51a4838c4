"""The digits by a Keras model with dropout and BatchNorm, for which it matters how records are divided.

The optimizer draws random numbers, from a generator of its own and from Keras'.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from hvdtrain.tasks.digits import CLASSES, SIDE
from hvdtrain.tasks.keras import KerasDigits

CHANNELS = 8


class Noisy(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
    """Adds noise to each gradient, as for privacy."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr, momentum=0.9)
        self.generator = keras.random.SeedGenerator(7)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = keras.random.normal(gradient.shape) + keras.random.normal(gradient.shape, seed=self.generator)
        super().update_step(gradient + 1e-3 * noise, variable, learning_rate)


class Unequal(KerasDigits):
    def build_optimizer(self, model: Any, lr: float) -> Any:  # noqa: ARG002
        return Noisy(lr)

    def build_model(self) -> Any:
        return keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Conv2D(CHANNELS, 3, padding="same", name="filters"),
                layers.BatchNormalization(name="norm"),
                layers.ReLU(),
                layers.Conv2D(CHANNELS, 1, trainable=False, name="frozen"),
                layers.Flatten(),
                layers.Dropout(0.3),
                layers.Dense(CLASSES, name="logits"),
            ],
            name="unequal",  # by names weights of several models of one process are compared
        )
