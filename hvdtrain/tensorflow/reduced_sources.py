"""Which gradients are reduced over ranks and which stay local: the same for tapes and for optimizers."""

from collections.abc import Sequence
from typing import Any

import keras

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.gradient_reduction import GradientReduction, number_of_ranks, scaled_local
from hvdtrain.tensorflow.keras_variables import key_of


class ReducedSources:
    """Reduces the gradients of all sources but those that were registered as local.

    Args:
        reduction: how.
        scale_local: whether local gradients are divided by the number of ranks, too, so that an average over ranks
            and a local gradient have one scale.
    """

    def __init__(self, reduction: GradientReduction, scale_local: bool) -> None:
        self._reduction, self._scale_local = reduction, scale_local
        self._local: set[Any] = set()

    def keep_local(self, source: Any) -> None:
        """Register a variable whose gradient is not reduced. On every rank the same."""
        self._local.add(key_of(source))

    def is_local(self, source: Any) -> bool:
        return bool(self._local) and key_of(source) in self._local

    def reduce(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """A gradient for each source. Collective."""
        places = [i for i, source in enumerate(sources) if not self.is_local(source)]
        reduced = self._reduction.reduce([gradients[i] for i in places], [sources[i] for i in places])
        result = list(gradients)
        for i, value in zip(places, reduced, strict=True):
            result[i] = value
        if self._scale_local:
            ranks = number_of_ranks(self._reduction.process_set)
            for i in set(range(len(sources))) - set(places):
                result[i] = scaled_local(result[i], ranks)
        return result


def local_variables(local_layers: Any) -> list[Any]:
    """The trainable variables of a layer, of several, or of none (None)."""
    layers = [] if local_layers is None else local_layers
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise UsageError(
                f"local_layers has {layer!r}, which is no Keras layer.",
                "The gradients of a layer's trainable weights stay on their rank.",
                "give keras.layers.Layer objects.",
            )
    return [variable for layer in layers for variable in layer.trainable_weights]
