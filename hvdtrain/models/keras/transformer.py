"""The transformer of `hvdtrain.models.torch.zoo` in Keras 3, layer for layer."""

from typing import Any

import keras
from keras import initializers, layers, ops

_EPSILON = 1e-5  # torch's for LayerNorm


def transformer(symbols: int, context: int, width: int, heads: int, blocks: int) -> keras.Model:
    """int32 [n, context] to logits float32 [n, context, symbols]."""
    inputs = keras.Input((context,), dtype="int32")
    features = layers.Embedding(symbols, width, embeddings_initializer=_normal(), name="symbols")(inputs)
    # Made of the inputs, since only what depends on them is part of the model.
    places = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    features = features + layers.Embedding(context, width, embeddings_initializer=_normal(), name="places")(places)
    for number in range(blocks):
        features = _block(features, width, heads, f"blocks.{number}")
    features = layers.LayerNormalization(epsilon=_EPSILON, name="norm")(features)
    return keras.Model(inputs, _dense(features, symbols, "logits"), name="transformer")


def _block(features: Any, width: int, heads: int, name: str) -> Any:
    joined = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}.norm1")(features)
    joined = _dense(joined, 3 * width, f"{name}.query_key_value")
    features = features + _dense(_CausalAttention(heads)(joined), width, f"{name}.attended")
    hidden = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}.norm2")(features)
    hidden = ops.gelu(_dense(hidden, 4 * width, f"{name}.wide"), approximate=True)
    return features + _dense(hidden, width, f"{name}.narrow")


def _dense(inputs: Any, units: int, name: str) -> Any:
    return layers.Dense(units, kernel_initializer=_normal(), name=name)(inputs)


def _normal() -> Any:
    return initializers.RandomNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="hvdtrain")
class _CausalAttention(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """[n, length, 3 · width] of queries, keys and values to [n, length, width]. No weights."""

    def __init__(self, heads: int, **options: Any) -> None:
        super().__init__(**options)
        self._heads = heads

    def get_config(self) -> dict[str, Any]:
        """What a .keras file needs to build it again."""
        return {**super().get_config(), "heads": self._heads}

    def call(self, joined: Any) -> Any:
        length, size = joined.shape[1], joined.shape[2] // 3 // self._heads
        split = ops.reshape(joined, (-1, length, 3, self._heads, size))
        query, key, value = (split[:, :, part] for part in range(3))  # [n, length, heads, size]
        scores = ops.einsum("nqhs,nkhs->nhqk", query, key) * size**-0.5
        allowed = ops.arange(length)[:, None] >= ops.arange(length)[None, :]
        scores = ops.where(allowed, scores, ops.cast(-1e9, scores.dtype))
        attended = ops.einsum("nhqk,nkhs->nqhs", ops.softmax(scores), value)
        return ops.reshape(attended, (-1, length, self._heads * size))
