"""The parts of a training step in a graph, and its waits for other ranks, timed by operations of it.

TensorFlow runs an operation as soon as its inputs are ready. A part therefore ends when what it computes is there, and
what of the next one has begun before then counts for the part that ends.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from hvdtrain.adapters.step_timer import PARTS
from hvdtrain.algorithms.quantile_sketch import FOLDED, QuantileSketch, SketchedSteps

_IN_GRAPH: Final = [name for name in PARTS if name != "host_to_device"]


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


class GraphStepTimer:
    """Times steps; `begin`, `mark` and `end` are called while a step is traced, the others between steps.

    Args: `names`: those of `PARTS` that can be told here; `most`: steps that are run at a time.
    """

    def __init__(self, names: Sequence[str], most: int = 1) -> None:
        self._names = [name for name in PARTS if name in names]
        with tf.device("/cpu:0"):
            self._rows = tf.Variable(tf.zeros([FOLDED + most, len(_IN_GRAPH)], tf.float64), trainable=False)
            self._row = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._at: Any = None
        self._sent: Any = None
        self._own: dict[str, Any] = {}
        self._copied = [0.0]  # of each step on the host; the last one is under way
        self._steps = SketchedSteps(PARTS)

    def begin(self, inputs: Any) -> None:
        """A micro batch has come."""
        self._at, self._sent, self._own = moment(tf.nest.flatten(inputs)), None, {}

    def mark(self, part: str, results: Sequence[Any]) -> None:
        """The part ends when `results` are there, of which None is nothing, and the next one begins."""
        now = moment(results)
        self._own[part] = self._own.get(part, 0.0) + now - self._at
        if part == "allreduce" and self._sent is not None:
            hidden = tf.maximum(self._at - self._sent, 0.0)
            self._own["allreduce_hidden"] = self._own.get("allreduce_hidden", 0.0) + hidden
            self._sent = None
        self._at = now

    def mark_before(self, part: str, results: Sequence[Any]) -> list[Any]:
        """As `mark`, and returns the results for the next part, which does not begin before the clock was read.

        Else TensorFlow may read the clock behind all that has become possible at the same moment.
        """
        self.mark(part, results)
        with tf.control_dependencies([self._at]):
            return [None if result is None else tf.identity(result) for result in results]

    def sending(self, inputs: Sequence[Any]) -> None:
        """The first message to other ranks begins when `inputs` are there."""
        self._sent = moment(inputs)

    def end(self, is_last: bool) -> None:
        """Add what was marked to this step; `is_last`: no other micro batch follows."""
        with tf.device("/cpu:0"):
            row = tf.stack([tf.cast(self._own.get(name, 0.0), tf.float64) for name in _IN_GRAPH])
            self._rows.scatter_nd_add([[self._row]], row[None])
            if is_last:
                self._row.assign_add(1)

    def copied(self, begin: float) -> None:
        """On the host, since `begin` of `time.perf_counter`, a batch was copied to the device."""
        self._copied[-1] += time.perf_counter() - begin

    def end_steps(self, count: int) -> None:
        """So many steps were run."""
        self._copied += [0.0] * count
        if len(self._copied) > FOLDED:
            self._fold()

    def take(self) -> Mapping[str, float]:
        """Seconds of each part since the last call."""
        self._fold()
        seconds = dict(zip(PARTS, self._steps.take_sums(), strict=True))
        return {name: seconds[name] for name in self._names}

    def take_sketches(self) -> Mapping[str, QuantileSketch]:
        """How long each part took in each step since the last call, by its name; empty where there was no step."""
        self._fold()
        sketches = self._steps.take_sketches()
        return {name: sketches[name] for name in self._names if name in sketches}

    def _fold(self) -> None:
        count = len(self._copied) - 1
        if not count:
            return
        rows = self._rows.numpy()[:count]
        self._rows.assign(tf.zeros_like(self._rows))
        self._row.assign(0)
        table = np.zeros([count, len(PARTS)])
        table[:, [PARTS.index(name) for name in _IN_GRAPH]] = rows
        table[:, PARTS.index("host_to_device")] = self._copied[:count]
        self._copied = self._copied[count:]
        for row in table.tolist():
            self._steps.append(row)
