"""What it takes to time a step's parts in TensorFlow, alone: `python -m benchmarks.overhead.timing_alone_keras`.

Prints JSON: {"seconds_per_step"}. A loop in a graph reads the clock as a step of a model with four variables does, and
is compared with the same loop that does not; what the host does for each step is added.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.keras.graph_step_timer import GraphLaps
from hvdtrain.adapters.step_timer import PARTS

_STEPS, _REPEATS, _VARIABLES = 2_000, 7, 4


def _loop(laps: GraphLaps | None) -> Any:
    """A function that runs `_STEPS` steps, whose parts `laps` times; None: nobody does."""

    def step(number: Any, *tensors: Any) -> tuple[Any, ...]:
        if laps is None:
            return number + 1, *map(tf.identity, tensors)
        laps.begin([tensors[0]])
        laps.mark("forward", [tensors[0]])
        laps.sending(tensors[:2])
        laps.mark("backward", tensors)
        reduced = laps.mark_before("allreduce", tensors)
        laps.mark("optimizer", reduced)
        laps.end(is_last=True)
        return number + 1, *reduced

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def run() -> Any:
        first = tf.constant(0), *(tf.zeros([4]) for _ in range(_VARIABLES))
        return tf.while_loop(lambda number, *_: number < _STEPS, step, first, parallel_iterations=1)[1]

    return run


def _in_graph(run: Any, laps: GraphLaps | None) -> float:
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    if laps is not None:
        laps.end_steps(_STEPS)
        laps.take()
    return seconds / _STEPS


def _on_host() -> float:
    laps = GraphLaps(PARTS)
    begin = time.perf_counter()
    for _ in range(_STEPS):
        laps.copied(begin)
        laps.end_steps(1)
    return (time.perf_counter() - begin) / _STEPS


def main() -> None:
    """Measure and print."""
    laps = GraphLaps(PARTS, most=_STEPS)
    timed, plain = _loop(laps), _loop(None)
    _in_graph(timed, laps)
    _in_graph(plain, None)
    more = [_in_graph(timed, laps) - _in_graph(plain, None) for _ in range(_REPEATS)]
    host = statistics.median(_on_host() for _ in range(_REPEATS))
    print(json.dumps({"seconds_per_step": statistics.median(more) + host}), flush=True)


if __name__ == "__main__":
    main()
