"""The network of `hvdtrain.models.torch.small_cnn`, layer for layer."""

from __future__ import annotations

import keras
from keras import layers


def small_cnn(side: int, channels: int, classes: int, width: int = 32) -> keras.Model:
    """float32 [n, side, side, channels] to logits [n, classes]."""
    return keras.Sequential(
        [
            keras.Input((side, side, channels)),
            layers.Conv2D(width, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(2 * width, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dense(classes, name="logits"),
        ],
        name="small_cnn",
    )
