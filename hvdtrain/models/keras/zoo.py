"""Classification models in Keras by name: our ResNets as in torchvision, and those of Keras applications."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers

from hvdtrain.errors import UsageError
from hvdtrain.models import SMALL_CNN
from hvdtrain.models.keras.resnet import RESNETS, resnet


def model_names() -> tuple[str, ...]:
    """In small letters what torch has too, with weights that fit both; and Keras applications as they call them."""
    return (SMALL_CNN, *RESNETS, *_applications())


def build_model(name: str, classes: int, side: int) -> keras.Model:
    """A new model with fresh weights: float32 [n, side, side, 3] to logits [n, classes].

    Raises:
        UsageError: the model takes no pictures of this size.
    """
    if name == SMALL_CNN:
        return small_cnn(side, 3, classes)
    if name in RESNETS:
        return resnet(name, classes, side)
    make = _applications()[name]
    options = {"include_preprocessing": False} if "include_preprocessing" in inspect.signature(make).parameters else {}
    try:
        return make(weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None, **options)
    except ValueError as error:
        raise UsageError(
            f"The model {name} takes no pictures of {side}×{side}: {str(error).splitlines()[0].rstrip('.')}.",
            "It was made for larger ones.",
            "choose one of the resnet18 family, which get a stem for small pictures, or larger pictures where the task "
            "has an argument for it.",
        ) from error


def takes_raw_pixels(model: Any) -> bool:
    """Whether the model itself begins by scaling pixels of 0…255 (EfficientNet): they are not to be normalized then."""
    return any(isinstance(layer, layers.Rescaling) for layer in model.layers[:4])


def _applications() -> Mapping[str, Callable[..., keras.Model]]:
    return {n: f for n, f in vars(keras.applications).items() if n[0].isupper() and inspect.isfunction(f)}


def small_cnn(side: int, channels: int, classes: int, width: int = 32) -> keras.Model:
    """float32 [n, side, side, channels] to logits [n, classes].

    Its layers are those of `hvdtrain.models.torch.zoo.small_cnn`. It is not a `Sequential`, which would put its own
    name before those of its variables.
    """
    inputs = keras.Input((side, side, channels))
    features = layers.Conv2D(width, 3, padding="same", activation="relu", name="conv1")(inputs)
    features = layers.Conv2D(2 * width, 3, padding="same", activation="relu", name="conv2")(features)
    features = layers.Flatten()(layers.MaxPooling2D(2)(features))
    features = layers.Dense(128, activation="relu", name="hidden")(features)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(features), name="small_cnn")
