"""Passes of virtual workers that are repeated in Keras, and checksums of gradients, by which passes are compared."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.micro_batch import MicroBatch
from hvdtrain.adapters.worker_states import AlternatingStates

_BITS: Final = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def checksum(gradient: Any) -> Any:
    """The sum of a gradient's bits as whole numbers, int64[]: one flipped bit changes it, and no order of terms."""
    if gradient is None:
        return tf.zeros([], tf.int64)
    dense = tf.convert_to_tensor(gradient)
    return tf.reduce_sum(tf.cast(tf.bitcast(dense, _BITS[dense.dtype.size]), tf.int64))


class KerasPassChecks:
    """Implements `PassChecks`.

    Args: `repeat`: runs the pass of a virtual worker in a step (from 0), with `put`, and changes nothing but the
    variables of `states`.

    Attributes: `active`: graphs that are traced now have `put` in them.
    """

    active = False

    def __init__(
        self, variables: Sequence[Any], states: AlternatingStates[Any], repeat: Callable[[MicroBatch, int], object]
    ) -> None:
        self.names: Sequence[str] = [variable.path for variable in variables]
        self._states, self._repeat = states, repeat
        self._checksums = tf.Variable(tf.zeros([len(variables)], tf.int64), trainable=False)
        self._noted: int | None = None

    def put(self, gradients: Sequence[Any]) -> None:
        """Keep the checksums of these. Called while steps are traced."""
        self._checksums.assign(tf.stack([checksum(gradient) for gradient in gradients]))

    def notes(self, worker: int) -> bool:
        """The pass of this virtual worker follows: whether its gradients are to be noted."""
        self.active = worker == self._noted
        return self.active

    def note(self, worker: int) -> None:
        self._noted = worker

    def noted(self) -> NDArray[np.int64]:
        self._noted, self.active = None, False
        return self._read()

    def repeated(self, batch: LoadedBatch, worker: int, step: int) -> NDArray[np.int64]:
        before = self._states.copy()
        self._repeat(MicroBatch(batch, worker), step)
        self._states.put_back(before)
        return self._read()

    def _read(self) -> NDArray[np.int64]:
        checksums: NDArray[np.int64] = self._checksums.numpy()
        return checksums
