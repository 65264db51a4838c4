"""What it takes to time a step's parts, alone: the same calls as in a step, with nothing between them.

In a whole step, these microseconds drown in what chance does. Here they do not, and caches are warm: that is the least
they take. The look at Linux's counters, once in two seconds, is counted by its share of this time.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, cast

from hvdtrain.adapters.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, OPTIMIZER, StepTimer
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.slowness.gauge import INTERVAL, Gauge

_STEPS, _REPEATS, _LOG_INTERVAL = 20_000, 7, 10
_LOOKS = 50


def seconds_per_step() -> float:
    """The median of some repetitions."""
    return statistics.median(_timed_steps() for _ in range(_REPEATS))


def share_of_looks() -> float:
    """Of all time, for which this process looks at Linux's counters."""
    gauge = Gauge()
    begin = time.perf_counter()
    for _ in range(_LOOKS):
        gauge._look()
    return (time.perf_counter() - begin) / _LOOKS / INTERVAL


def _timed_steps() -> float:
    timer = StepTimer()
    steps = StepTimes(cast(Any, None), cast(Any, None))  # whose adapter and other ranks are asked for at the end only
    begin = time.perf_counter()
    for number in range(_STEPS):
        steps.waited(begin, begin)
        timer.begin()
        for part in (HOST_TO_DEVICE, FORWARD, BACKWARD):
            timer.end(part)
        timer.end_wait()
        timer.end(OPTIMIZER)
        timer.end_step()
        steps.ended(1)
        if number % _LOG_INTERVAL == 0:
            timer.take()
    return (time.perf_counter() - begin) / _STEPS
