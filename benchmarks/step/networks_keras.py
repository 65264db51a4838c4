"""The networks in Keras."""

from __future__ import annotations

import keras

from benchmarks.step.workload import CLASSES, IMAGENET_SIDE, LAYERS, MODELS, WIDTH
from hvdtrain.models.keras import zoo


def build(name: str) -> keras.Model:
    """A network with fresh weights."""
    if name in ("resnet18", "resnet50"):
        large = zoo.build_model(name, CLASSES, IMAGENET_SIDE)
        return keras.models.clone_model(large, input_tensors=keras.Input(MODELS[name].shape))
    widths = [32] if name == "mlp" else [WIDTH] * (LAYERS - 1)
    dense = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.layers.Input(MODELS[name].shape), *dense, keras.layers.Dense(CLASSES)])
