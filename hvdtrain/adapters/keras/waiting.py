"""How long a step waits for other ranks, measured inside graphs."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
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


_creation = threading.Lock()


def _waits() -> tuple[Any, Any]:
    """How many waits of this process have begun, and how many of them have ended.

    The thread that traces a step and the one that looks for stalls may be the first to ask at the same time; a second
    pair would never be counted in.
    """
    with _creation:
        return _created_waits()


@functools.cache
def _created_waits() -> tuple[Any, Any]:
    with tf.init_scope(), tf.device("/cpu:0"):
        begun, ended = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
    return begun, ended


def current_wait() -> object | None:
    """Which wait for other ranks a step is in; None while it computes. For `waits_for_peers`, from another thread."""
    begun, ended = (int(count.numpy()) for count in _waits())
    return (begun, ended) if begun > ended else None


def marked_wait(inputs: Sequence[Any], collective: Callable[[], list[Any]]) -> list[Any]:
    """What `collective` returns. `current_wait` shows the time from when its inputs are ready until its results are."""
    begun, ended = _waits()
    with tf.control_dependencies([i for i in inputs if i is not None]):
        begun.assign_add(1)
    results = collective()  # not after the count: parts of it start before all inputs are there
    with tf.control_dependencies([r for r in results if r is not None]):
        ended.assign_add(1)
    return results


class Waiting:
    """Seconds from when a collective's inputs were all ready until its results were."""

    def __init__(self) -> None:
        self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def over(self, inputs: Sequence[Any], collective: Callable[[], list[Any]]) -> list[Any]:
        """What `collective` returns. Called while a step is traced; None is skipped on both sides."""
        ready = moment(inputs)
        results = marked_wait(inputs, collective)
        self._seconds.assign_add(moment(results) - ready)
        return results

    def take(self) -> float:
        seconds = float(self._seconds.numpy())
        self._seconds.assign(0.0)
        return seconds
