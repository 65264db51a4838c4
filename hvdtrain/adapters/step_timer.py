"""The parts of a training step in an adapter that runs them one after the other, timed step by step.

One reading of the clock ends a part and begins the next one: 0.1 µs a part. Nothing waits for a device here; where the
work runs on a GPU, `adapters.torch.gpu_step_timer` lets the device itself take the times.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hvdtrain.algorithms.quantile_sketch import QuantileSketch

PARTS: Final = ("host_to_device", "forward", "backward", "allreduce", "optimizer", "allreduce_hidden")
"""In the order in which a step goes through them, and at last what happens beside others.

"allreduce" is the time in which nothing was left to do but to wait for other ranks. "allreduce_hidden" is the time from
the first message to the beginning of this wait: communication that took no time of its own. It is an upper bound,
because the last message may have ended before.
"""

HOST_TO_DEVICE, FORWARD, BACKWARD, ALLREDUCE, OPTIMIZER, ALLREDUCE_HIDDEN = range(len(PARTS))

_FOLDED: Final = 512  # steps: bounds the memory that their times take

SpanSink = Callable[[str, float, float], object]
"""Receives a name, a beginning and an end, of `time.perf_counter`."""


class StepTimer:
    """Times steps on the host."""

    def __init__(self) -> None:
        self._at = self._sent_at = 0.0
        self._own = [0.0] * len(PARTS)  # of the step that is under way
        self._steps: list[list[float]] = []
        self._folded = [0.0] * len(PARTS)  # sums over steps that are in the sketches already
        self._untold = 0  # steps at the end of `_steps` that `take` has not told
        self._sketches = [QuantileSketch() for _ in PARTS]
        self.tell: SpanSink | None = None
        """Receives each part of a step, where a trace is being recorded."""

    def begin(self) -> None:
        self._at = time.perf_counter()

    def end(self, part: int) -> None:
        now = time.perf_counter()
        self._own[part] += now - self._at
        if self.tell is not None:
            self.tell(PARTS[part], self._at, now)
        self._at = now

    def sending(self) -> None:
        """A message to other ranks begins, while this one still computes; only the first one of a step matters."""
        if not self._sent_at:
            self._sent_at = time.perf_counter()

    def end_wait(self) -> None:
        """As `end(ALLREDUCE)`; messages that began before the wait were hidden until it began."""
        if self._sent_at:
            self._own[ALLREDUCE_HIDDEN] += max(0.0, self._at - self._sent_at)
            self._sent_at = 0.0
        self.end(ALLREDUCE)

    def end_step(self) -> None:
        self._steps.append(self._own)
        self._own = [0.0] * len(PARTS)
        self._untold += 1
        if len(self._steps) >= _FOLDED:
            self._fold()

    def take(self) -> list[float]:
        """Seconds of each of `PARTS` since the last call."""
        seconds = self._folded
        if self._untold:
            seconds = [sum(values) for values in zip(seconds, *self._steps[-self._untold :], strict=True)]
        self._folded, self._untold = [0.0] * len(PARTS), 0
        return seconds

    def take_sketches(self) -> Mapping[str, QuantileSketch]:
        """How long each part took in each step since the last call, by its name; empty where there was no step."""
        self._fold()
        sketches, self._sketches = self._sketches, [QuantileSketch() for _ in PARTS]
        return dict(zip(PARTS, sketches, strict=True)) if sketches[0].count else {}

    def _fold(self) -> None:
        if not self._steps:
            return
        if self._untold:
            untold = self._steps[-self._untold :]
            self._folded = [sum(values) for values in zip(self._folded, *untold, strict=True)]
            self._untold = 0
        add_columns(self._sketches, self._steps)
        self._steps = []


def add_columns(sketches: Sequence[QuantileSketch], rows: Sequence[Sequence[float]]) -> None:
    """Add the values of each column to its sketch."""
    columns: Any = np.array(rows, np.float64).T
    for sketch, column in zip(sketches, columns, strict=True):
        sketch.add(column)
