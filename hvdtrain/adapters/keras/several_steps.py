"""Several training steps in one call of a graph, so that a small model does not wait for Python at each of them.

Keras calls this `steps_per_execution`, MindSpore data sinking.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.compiled import CompiledStep


class SeveralSteps:
    """A loop over batches in a graph, which changes the same variables in the same order as one call for each does.

    Args:
        step: traced once; as `KerasAdapter` trains a batch: its features, weights and packed `StepNumbers` → whether
            weights were changed, and the norm of the gradients, float32.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._run = CompiledStep(self._loop, any_length=True)

    def __call__(self, layout: object, batches: Sequence[LoadedBatch], numbers: Sequence[NDArray[np.float64]]) -> Any:
        """Train each batch; returns the norms, float32 [batches]."""
        features = {
            name: tf.constant(np.stack([batch.features[name] for batch in batches])) for name in batches[0].features
        }
        weights = tf.constant(np.stack([batch.weights for batch in batches]))
        return self._run(layout, features, weights, tf.constant(np.stack(numbers)))[0]

    def _loop(self, features: dict[str, Any], weights: Any, numbers: Any) -> list[Any]:
        count = tf.shape(numbers)[0]

        def train(i: Any, norms: Any) -> tuple[Any, Any]:
            _, norm = self._step({name: values[i] for name, values in features.items()}, weights[i], numbers[i])
            return i + 1, norms.write(i, norm)

        # One after the other: a step needs the weights that the one before it leaves, and its collectives have the
        # same names.
        first = tf.constant(0), tf.TensorArray(tf.float32, size=count, element_shape=[])
        _, norms = tf.while_loop(lambda i, _: i < count, train, first, parallel_iterations=1)
        return [norms.stack()]
