"""What differs between two steps beside their records, in one tensor.

To make a tensor takes as long on the host as a small operation in the graph.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


class StepNumbers(NamedTuple):
    """What a micro batch needs to know. Numbers on the host; tensors within a graph.

    Attributes:
        step: of the run; int64.
        lr: learning rate; float32.
        scale: of the loss; float32.
        global_weight: the weights of all records of the global batch added up; float32.
        seeds: of random states, uint32 of shape [states, 2] in a graph, 64 bits each on the host.
    """

    step: Any
    lr: Any
    scale: Any
    global_weight: Any
    seeds: Any

    def packed(self) -> NDArray[np.float64]:
        """Of shape [4 + 2 · states]; float64 holds each of these numbers exactly."""
        halves = [half for seed in self.seeds for half in (seed >> 32, seed & 0xFFFFFFFF)]
        return np.array([*self[:-1], *halves], np.float64)

    @classmethod
    def unpacked(cls, packed: Any) -> "StepNumbers":
        """What `packed` returned, as a tensor in a graph."""
        lr, scale, global_weight = tf.unstack(tf.cast(packed[1:4], tf.float32))
        seeds = tf.reshape(tf.cast(packed[4:], tf.uint32), [-1, 2])
        return cls(tf.cast(packed[0], tf.int64), lr, scale, global_weight, seeds)
