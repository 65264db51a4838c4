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

from hvdtrain.adapters.keras.graph_clock import GraphStepTimer
from hvdtrain.adapters.step_timer import PARTS

_STEPS, _REPEATS, _VARIABLES = 2_000, 7, 4


def _loop(timer: GraphStepTimer | None) -> Any:
    """A function that runs `_STEPS` steps, whose parts `timer` times; None: nobody does."""

    def step(number: Any, *tensors: Any) -> tuple[Any, ...]:
        if timer is None:
            return number + 1, *map(tf.identity, tensors)
        timer.begin([tensors[0]])
        timer.mark("forward", [tensors[0]])
        timer.sending(tensors[:2])
        timer.mark("backward", tensors)
        reduced = timer.mark_before("allreduce", tensors)
        timer.mark("optimizer", reduced)
        timer.end(is_last=True)
        return number + 1, *reduced

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def run() -> Any:
        first = tf.constant(0), *(tf.zeros([4]) for _ in range(_VARIABLES))
        return tf.while_loop(lambda number, *_: number < _STEPS, step, first, parallel_iterations=1)[1]

    return run


def _in_graph(run: Any, timer: GraphStepTimer | None) -> float:
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    if timer is not None:
        timer.end_steps(_STEPS)
        timer.take()
    return seconds / _STEPS


def _on_host() -> float:
    timer = GraphStepTimer(PARTS)
    begin = time.perf_counter()
    for _ in range(_STEPS):
        timer.copied(begin)
        timer.end_steps(1)
    return (time.perf_counter() - begin) / _STEPS


def main() -> None:
    """Measure and print."""
    timer = GraphStepTimer(PARTS, most=_STEPS)
    timed, plain = _loop(timer), _loop(None)
    _in_graph(timed, timer)
    _in_graph(plain, None)
    more = [_in_graph(timed, timer) - _in_graph(plain, None) for _ in range(_REPEATS)]
    host = statistics.median(_on_host() for _ in range(_REPEATS))
    print(json.dumps({"seconds_per_step": statistics.median(more) + host}), flush=True)


if __name__ == "__main__":
    main()
