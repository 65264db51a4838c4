"""`keras.layers.Normalization` computes with constants, which it makes of its variables when it is adapted or loaded.

Whoever else writes these variables has them made again. What TensorFlow has traced before keeps the old ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray


class Constant(NamedTuple):
    """What such a layer computes with."""

    path: str
    value: Any

    def numpy(self) -> NDArray[Any]:
        return np.asarray(self.value)


def normalization_constants(model: Any) -> list[Constant]:
    """Of all such layers of a model, in its order, but those that were given their mean and variance."""
    return [
        Constant(f"{layer.path}/{name}", getattr(layer, name))
        for layer in _normalizations(model)
        for name in ("mean", "variance")
    ]


def renew_normalization(model: Any) -> None:
    """After variables were written."""
    for layer in _normalizations(model):
        layer.finalize_state()


@contextmanager
def constants_in_graph() -> Iterator[None]:
    """Within the block, a graph that is traced has the numbers in it, where it would have inputs for tensors."""
    call = keras.layers.Normalization.call

    def with_numbers(layer: Any, inputs: Any) -> Any:
        kept = layer.mean, layer.variance
        layer.mean, layer.variance = (np.asarray(each) for each in kept)
        try:
            return call(layer, inputs)
        finally:
            layer.mean, layer.variance = kept

    keras.layers.Normalization.call = with_numbers
    try:
        yield
    finally:
        keras.layers.Normalization.call = call


def _normalizations(model: Any) -> list[Any]:
    layers = model._flatten_layers()
    return [each for each in layers if isinstance(each, keras.layers.Normalization) and hasattr(each, "adapt_mean")]
