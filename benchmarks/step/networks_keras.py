"""The networks in Keras."""

from __future__ import annotations

import keras

from benchmarks.step.workload import CLASSES, LAYERS, MODELS, WIDTH
from hvdtrain.models.keras import zoo


def build(name: str) -> keras.Model:
    """A network with fresh weights."""
    if name == "resnet18":
        return zoo.build_model("resnet18", CLASSES, 32)
    widths = [32] if name == "mlp" else [WIDTH] * (LAYERS - 1)
    dense = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.layers.Input(MODELS[name].shape), *dense, keras.layers.Dense(CLASSES)])
