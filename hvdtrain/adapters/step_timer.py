"""The parts of a training step in an adapter that runs them one after the other, timed step by step.

One reading of the clock ends a part and begins the next one: 0.1 µs a part. Nothing waits for a device here; where the
work runs on a GPU, `adapters.torch.gpu_step_timer` lets the device itself take the times.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from hvdtrain.algorithms.quantile_sketch import QuantileSketch, SketchedSteps
from hvdtrain.measured import TIMED

PARTS: Final = TIMED
"""Of these, "allreduce" is the time in which nothing was left to do but to wait for other ranks. "allreduce_hidden" is
the time from the first message to the beginning of this wait: communication that took no time of its own. It is an
upper bound, because the last message may have ended before.
"""

ALLREDUCE, HOST_TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, ALLREDUCE_HIDDEN = range(len(PARTS))

SpanSink = Callable[[str, float, float], object]
"""Receives a name, a beginning and an end, of `time.perf_counter`."""


class StepTimer:
    """Times steps on the host."""

    def __init__(self) -> None:
        self._at = self._sent_at = 0.0
        self._own = [0.0] * len(PARTS)  # of the step that is under way
        self._steps = SketchedSteps(PARTS)
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

    def take(self) -> list[float]:
        """Seconds of each of `PARTS` since the last call."""
        return self._steps.take_sums()

    def take_sketches(self) -> Mapping[str, QuantileSketch]:
        """How long each part took in each step since the last call, by its name; empty where there was no step."""
        return self._steps.take_sketches()
