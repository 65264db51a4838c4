"""The clock, read by an operation of a graph."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled


def moment(after: Sequence[Any]) -> Any:
    """Seconds, float64, when all of these tensors are there; None is nothing. Called while a step is traced."""
    with tf.device("/cpu:0"), tf.control_dependencies([tensor for tensor in after if tensor is not None]):
        if is_op_determinism_enabled():  # TensorFlow refuses its own clock then, although no number depends on it
            return tf.ensure_shape(tf.numpy_function(_now, [], tf.float64), [])
        return tf.timestamp()


def _now() -> np.float64:
    return np.float64(time.perf_counter())
