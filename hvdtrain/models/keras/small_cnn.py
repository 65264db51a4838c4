"""The network of `hvdtrain.models.torch.small_cnn`, layer for layer."""

from __future__ import annotations

import keras
from keras import layers


def small_cnn(side: int, channels: int, classes: int, width: int = 32) -> keras.Model:
    """float32 [n, side, side, channels] to logits [n, classes].

    Not a `Sequential`, which would put its own name before those of its variables.
    """
    inputs = keras.Input((side, side, channels))
    features = layers.Conv2D(width, 3, padding="same", activation="relu", name="conv1")(inputs)
    features = layers.Conv2D(2 * width, 3, padding="same", activation="relu", name="conv2")(features)
    features = layers.Flatten()(layers.MaxPooling2D(2)(features))
    features = layers.Dense(128, activation="relu", name="hidden")(features)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(features), name="small_cnn")
