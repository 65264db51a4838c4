"""The digits by a Keras model with dropout and BatchNorm, for which it matters how records are divided."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from hvdtrain.tasks.digits import CLASSES, SIDE
from hvdtrain.tasks.keras import KerasDigits

CHANNELS = 8


class Unequal(KerasDigits):
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
