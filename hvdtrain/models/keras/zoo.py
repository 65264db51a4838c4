"""Models in Keras: Keras applications by name, ResNet v1.5 equal to torchvision's, and a small transformer.

Keras applications' ResNet50 is v1: its stride is in the 1×1 convolution, its convolutions have biases, its BatchNorm an
epsilon of 1.001e-5. Here, as in torchvision/models/resnet.py: the stride is in the 3×3 ("v1.5", which is how NVIDIA and
MLPerf train it), no convolution has a bias, epsilon is 1e-5. Layers are named as in torchvision's state_dict.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import keras
from keras import initializers, layers, ops

from hvdtrain.models import SMALL_CNN, SMALL_SIDE, refused_side, require_side_of_small_cnn

_EPSILON: Final = 1e-5
_MOMENTUM: Final = 0.9  # torch's momentum of 0.1, which is the new value's share


def resnet(name: str, classes: int, side: int) -> keras.Model:
    """A new model with fresh weights: float32 [n, side, side, 3] to logits [n, classes].

    Pictures up to `SMALL_SIDE` get a stem of one 3×3 convolution without stride and pooling, as in
    `hvdtrain.models.torch.zoo`.
    """
    block, blocks = RESNETS[name]
    inputs = keras.Input((side, side, 3))
    size, stride = (3, 1) if side <= SMALL_SIDE else (7, 2)
    features = _normalized(_convolution(inputs, 64, size, stride, "conv1"), "bn1", relu=True)
    if side > SMALL_SIDE:
        # After a ReLU, padding by zeros is torch's padding by minus infinity.
        features = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(features))
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage and not number else 1
            features = block(features, 64 * 2**stage, stride, f"layer{stage + 1}.{number}")
    features = layers.GlobalAveragePooling2D()(features)
    bound = features.shape[-1] ** -0.5
    # torch.nn.Linear's initialization: weights and biases uniform within 1 / sqrt(inputs).
    logits = layers.Dense(
        classes,
        kernel_initializer=initializers.RandomUniform(-bound, bound),
        bias_initializer=initializers.RandomUniform(-bound, bound),
        name="fc",
    )(features)
    return keras.Model(inputs, logits, name=name)


def _basic_block(inputs: Any, width: int, stride: int, name: str) -> Any:
    features = _normalized(_convolution(inputs, width, 3, stride, f"{name}.conv1"), f"{name}.bn1", relu=True)
    features = _normalized(_convolution(features, width, 3, 1, f"{name}.conv2"), f"{name}.bn2")
    return layers.ReLU()(layers.Add()([features, _shortcut(inputs, width, stride, name)]))


def _bottleneck(inputs: Any, width: int, stride: int, name: str) -> Any:
    features = _normalized(_convolution(inputs, width, 1, 1, f"{name}.conv1"), f"{name}.bn1", relu=True)
    features = _normalized(_convolution(features, width, 3, stride, f"{name}.conv2"), f"{name}.bn2", relu=True)
    features = _normalized(_convolution(features, 4 * width, 1, 1, f"{name}.conv3"), f"{name}.bn3")
    return layers.ReLU()(layers.Add()([features, _shortcut(inputs, 4 * width, stride, name)]))


RESNETS: Final = {
    "resnet18": (_basic_block, (2, 2, 2, 2)),
    "resnet34": (_basic_block, (3, 4, 6, 3)),
    "resnet50": (_bottleneck, (3, 4, 6, 3)),
    "resnet101": (_bottleneck, (3, 4, 23, 3)),
    "resnet152": (_bottleneck, (3, 8, 36, 3)),
}
"""By torchvision's names: the kind of block, and how many in each stage. He et al. 2015 (arXiv:1512.03385), table 1."""


def _shortcut(inputs: Any, channels: int, stride: int, name: str) -> Any:
    """The input itself where its shape fits, else a 1×1 convolution of it."""
    if stride == 1 and inputs.shape[-1] == channels:
        return inputs
    return _normalized(_convolution(inputs, channels, 1, stride, f"{name}.downsample.0"), f"{name}.downsample.1")


def _convolution(inputs: Any, channels: int, size: int, stride: int, name: str) -> Any:
    """Padded by size // 2 on all sides: Keras' "same" would pad one side more than the other where the stride is 2."""
    padded = layers.ZeroPadding2D(size // 2)(inputs) if size > 1 and stride > 1 else inputs
    return layers.Conv2D(
        channels,
        size,
        stride,
        padding="valid" if stride > 1 or size == 1 else "same",
        use_bias=False,
        # kaiming_normal_ with fan_out, as in torchvision
        kernel_initializer=initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        name=name,
    )(padded)


def _normalized(inputs: Any, name: str, relu: bool = False) -> Any:
    features = layers.BatchNormalization(momentum=_MOMENTUM, epsilon=_EPSILON, name=name)(inputs)
    return layers.ReLU()(features) if relu else features


def model_names() -> tuple[str, ...]:
    """List in small letters what torch has too, with weights that fit both, and Keras applications by their names."""
    return (SMALL_CNN, *RESNETS, *_applications())


def build_model(name: str, classes: int, side: int) -> keras.Model:
    """A new model with fresh weights: float32 [n, side, side, 3] to logits [n, classes].

    Raises `UsageError`: the model takes no pictures of this size.
    """
    if name == SMALL_CNN:
        require_side_of_small_cnn(side)
        return small_cnn(side, 3, classes)
    if name in RESNETS:
        return resnet(name, classes, side)
    make = _applications()[name]
    options = {"include_preprocessing": False} if "include_preprocessing" in inspect.signature(make).parameters else {}
    try:
        return make(weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None, **options)
    except ValueError as error:
        raise refused_side(name, side, str(error)) from error


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


def transformer(symbols: int, context: int, width: int, heads: int, blocks: int, packed: bool = False) -> keras.Model:
    """As torch's, layer for layer: int32 [n, context] to logits float32 [n, context, symbols].

    `packed`: as torch's `PackedTransformer`; the inputs are three, "seen", "positions" and "segments".
    """
    seen = keras.Input((context,), dtype="int32", name="seen")
    features = layers.Embedding(symbols, width, embeddings_initializer=_normal(), name="symbols")(seen)
    if packed:
        places, segments = (keras.Input((context,), dtype="int32", name=name) for name in ("positions", "segments"))
    else:
        # Made of the inputs, since only what depends on them is part of the model.
        places, segments = ops.cumsum(ops.ones_like(seen), axis=1) - 1, None
    features = features + layers.Embedding(context, width, embeddings_initializer=_normal(), name="places")(places)
    for number in range(blocks):
        features = _block(features, segments, width, heads, f"blocks.{number}")
    features = layers.LayerNormalization(epsilon=_EPSILON, name="norm")(features)
    inputs = [seen, places, segments] if packed else seen
    return keras.Model(inputs, _dense(features, symbols, "logits"), name="transformer")


def _block(features: Any, segments: Any, width: int, heads: int, name: str) -> Any:
    joined = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}.norm1")(features)
    joined = _dense(joined, 3 * width, f"{name}.query_key_value")
    attended = _CausalAttention(heads)(*([joined] if segments is None else [joined, segments]))
    features = features + _dense(attended, width, f"{name}.attended")
    hidden = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}.norm2")(features)
    hidden = ops.gelu(_dense(hidden, 4 * width, f"{name}.wide"), approximate=True)
    return features + _dense(hidden, width, f"{name}.narrow")


def _dense(inputs: Any, units: int, name: str) -> Any:
    return layers.Dense(units, kernel_initializer=_normal(), name=name)(inputs)


def _normal() -> Any:
    return initializers.RandomNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="hvdtrain")
class _CausalAttention(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """[n, length, 3 · width] of queries, keys and values to [n, length, width]. No weights.

    With `segments` [n, length], each place sees only those of its own segment.
    """

    def __init__(self, heads: int, **options: Any) -> None:
        super().__init__(**options)
        self._heads = heads

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self._heads}

    def call(self, joined: Any, segments: Any = None) -> Any:
        length, size = joined.shape[1], joined.shape[2] // 3 // self._heads
        split = ops.reshape(joined, (-1, length, 3, self._heads, size))
        query, key, value = (split[:, :, part] for part in range(3))  # [n, length, heads, size]
        scores = ops.einsum("nqhs,nkhs->nhqk", query, key) * size**-0.5
        allowed = ops.arange(length)[:, None] >= ops.arange(length)[None, :]
        if segments is not None:
            allowed = ops.logical_and(allowed, ops.equal(segments[:, None, :, None], segments[:, None, None, :]))
        scores = ops.where(allowed, scores, ops.cast(-1e9, scores.dtype))
        attended = ops.einsum("nhqk,nkhs->nqhs", ops.softmax(scores), value)
        return ops.reshape(attended, (-1, length, self._heads * size))
