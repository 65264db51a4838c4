"""Passes of virtual workers that are repeated in Keras, and checksums of gradients, by which passes are compared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.adapters.keras.micro_batch import MicroBatch
from hvdtrain.adapters.worker_states import AlternatingStates
from hvdtrain.named_arrays import NO_STATE

_BITS: Final = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def checksum(gradient: Any) -> Any:
    """The sum of a gradient's bits as whole numbers, int64[]: one flipped bit changes it, and no order of terms."""
    if gradient is None:
        return tf.zeros([], tf.int64)
    dense = tf.convert_to_tensor(gradient)
    return tf.reduce_sum(tf.cast(tf.bitcast(dense, _BITS[dense.dtype.size]), tf.int64))


class KerasPassChecks:
    """Implements `PassChecks`.

    Args: `most`: virtual workers that are noted in one update. `repeat`: runs the pass of one in a step (from 0), with
    `put`, and changes nothing but the variables of `states`. `evaluate`: what it measures in evaluation. `forget`: lets
    `repeat` trace its graphs again.

    Attributes: `active`: graphs that are traced now have `put` in them.
    """

    active = False

    def __init__(
        self,
        variables: Sequence[Any],
        states: AlternatingStates[Any],
        most: int,
        repeat: Callable[[MicroBatch, int], object],
        evaluate: Callable[[MicroBatch, int], MeasureTotals],
        forget: Callable[[], object],
    ) -> None:
        self.names: Sequence[str] = [variable.path for variable in variables]
        self._states, self._repeat, self._evaluate, self._forget = states, repeat, evaluate, forget
        self._checksums = tf.Variable(tf.zeros([most, len(variables)], tf.int64), trainable=False)
        self._row = tf.Variable(0, trainable=False)
        self._noted: list[int] = []

    def put(self, gradients: Sequence[Any]) -> None:
        """Keep the checksums of these. Called while steps are traced."""
        checksums = tf.stack([checksum(gradient) for gradient in gradients])
        self._checksums.scatter_nd_update([[self._row]], [checksums])

    def notes(self, worker: int) -> bool:
        """The pass of this virtual worker follows: whether its gradients are to be noted."""
        self.active = worker in self._noted
        if self.active:
            self._row.assign(self._noted.index(worker))
        return self.active

    def note(self, workers: Sequence[int]) -> None:
        self._noted = [*workers]

    def noted(self) -> Mapping[int, NDArray[np.int64]]:
        noted, self._noted, self.active = self._noted, [], False
        return dict(zip(noted, self._checksums.numpy(), strict=False))

    def measured_twice(self, batch: LoadedBatch, worker: int) -> tuple[MeasureTotals, MeasureTotals, list[str]]:
        return self._states.twice_without_trace(lambda: self._evaluate(MicroBatch(batch, worker), batch.step))

    def begin_anew(self) -> bool:
        self._forget()
        return True

    def repeated(
        self, batch: LoadedBatch, worker: int, step: int, state: Mapping[str, NDArray[Any]] = NO_STATE
    ) -> NDArray[np.int64]:
        before = self._states.replaced(state)
        self._row.assign(0)
        self._repeat(MicroBatch(batch, worker), step)
        self._states.put_back(before)
        checksums: NDArray[np.int64] = self._checksums.numpy()[0]
        return checksums
