"""The parts of a training step on a GPU, timed by the device: the host only asks it to, and is far ahead of it."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from hvdtrain.adapters.step_timer import ALLREDUCE, ALLREDUCE_HIDDEN, StepTimer
from hvdtrain.algorithms.quantile_sketch import QuantileSketch

_PENDING: Final = 64  # steps whose times are not read yet; their events are used again

_BEGIN: Final = -1
_SENDING: Final = -2

Mark = tuple[int, Any]
"""What ends at an event: a part, nothing (`_BEGIN`), or nothing because a message begins (`_SENDING`)."""


class GpuStepTimer(StepTimer):
    """As `StepTimer`, by events in the stream in which the step runs.

    Args: `new_event`: makes an event that the device can give a time; None: CUDA's.
    """

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self._new_event = new_event or partial(torch.cuda.Event, enable_timing=True)
        self._marks: list[Mark] = []
        self._pending: deque[list[Mark]] = deque()
        self._free: list[Any] = []
        self._is_sending = False

    def begin(self) -> None:
        self.end(_BEGIN)

    def end(self, part: int) -> None:
        event = self._free.pop() if self._free else self._new_event()
        event.record()
        self._marks.append((part, event))

    def sending(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self.end(_SENDING)

    def end_wait(self) -> None:
        self._is_sending = False
        self.end(ALLREDUCE)

    def end_step(self) -> None:
        self._pending.append(self._marks)
        self._marks = []
        if len(self._pending) > _PENDING:
            self._read_oldest()

    def take(self) -> list[float]:
        self._read_all()
        return super().take()

    def take_sketches(self) -> Mapping[str, QuantileSketch]:
        self._read_all()
        return super().take_sketches()

    def _read_all(self) -> None:
        while self._pending:
            self._read_oldest()

    def _read_oldest(self) -> None:
        marks = self._pending.popleft()
        marks[-1][1].synchronize()  # many steps ago, or the caller waits for the device anyway
        sent, before = None, None
        for what, event in marks:
            if what == _SENDING:
                sent = event
                continue
            if what >= 0:
                self._own[what] += _seconds(before, event)
            if what == ALLREDUCE and sent is not None:
                self._own[ALLREDUCE_HIDDEN] += max(0.0, _seconds(sent, before))
            before = event
        self._free += [event for _, event in marks]
        super().end_step()


def _seconds(begin: Any, end: Any) -> float:
    return float(begin.elapsed_time(end)) / 1000
