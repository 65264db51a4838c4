"""`hvdtrain` without the times of a step's parts and without a look for stragglers: what these cost.

`python -m benchmarks.overhead.unmeasured train …`, as `python -m hvdtrain train …`. There is no option for that.
"""

from __future__ import annotations

import sys
from typing import Any

from hvdtrain.adapters.step_timer import PARTS, StepTimer
from hvdtrain.cli import main
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.slowness.causes import NOTHING
from hvdtrain.slowness.gauge import Gauge
from hvdtrain.slowness.stragglers import Stragglers


def _nothing(*_: Any) -> None:
    pass


def switch_off() -> None:
    """In this process."""
    timed: Any = StepTimer
    for name in ("begin", "end", "sending", "end_wait", "end_step"):
        setattr(timed, name, _nothing)
    timed.take = lambda _self: [0.0] * len(PARTS)
    steps: Any = StepTimes
    steps.waited = steps.ended = _nothing
    gauge: Any = Gauge
    gauge.read = lambda _self: NOTHING
    stragglers: Any = Stragglers
    stragglers.add = lambda *_: []


if __name__ == "__main__":
    switch_off()
    sys.exit(main())
