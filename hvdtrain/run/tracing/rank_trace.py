"""What one rank records of a trace, and its events on the clock of rank 0."""

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from hvdtrain import activity
from hvdtrain.activity import WAIT
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.profile import Profile, Profiler
from hvdtrain.comm.timeline import TimelineEvent
from hvdtrain.run.tracing.trace_file import LaneEvent

_log = logging.getLogger("hvdtrain.run")

STEPS, PHASES, PARTS, WAITS = "steps", "phases", "parts of steps", "calls that wait for other ranks"

_MOST: Final = 200_000  # spans of one trace: those of 1,000 steps of many micro batches. What follows is left out

LANES: Final = (STEPS, PHASES, PARTS, WAITS)  # hvdtrain's own, above those of the framework's profiler


class RankTrace:
    """What this rank records, by several threads; its clock is `ahead` of rank 0's by so many seconds."""

    def __init__(self, adapter: Adapter, profiler: Profiler, ahead: float) -> None:
        self._adapter, self._profiler, self._ahead = adapter, profiler, ahead
        # Lane, name, begin and end, of `time.perf_counter`, which `time.monotonic` equals on Linux.
        self._spans: list[tuple[str, str, float, float]] = []
        self._profile = Profile(0, [])
        self._step_begin = 0.0
        self._is_recording = False

    def prepare(self) -> None:
        """Start the profiler, which may take a second. Training goes on without it if it cannot be started."""
        try:
            self._profiler.start()
            self._is_recording = True
        except Exception as error:  # another one may be running, or its files cannot be written
            _log.warning("The framework's profiler could not be started: %s: %s", type(error).__name__, error)

    def begin(self) -> None:
        """From now on it records."""
        activity.now.trace = self._phase
        self._adapter.tell_parts(partial(self._add, PARTS))
        self._step_begin = time.perf_counter()

    def step_ended(self, number: int) -> None:
        """Update `number` is done, with all that follows it until the next one."""
        now = time.perf_counter()
        self._add(STEPS, f"update {number}", self._step_begin, now)
        self._step_begin = now

    def leave(self) -> None:
        """The loop goes on as before."""
        activity.now.trace = None
        self._adapter.tell_parts(None)

    def stop(self) -> None:
        """Take what the profiler has recorded, which may take seconds. After `leave`."""
        if not self._is_recording:
            return
        self._is_recording = False
        try:
            self._profile = self._profiler.stop()
        except Exception as error:
            _log.warning("What the framework's profiler recorded is lost: %s: %s", type(error).__name__, error)

    def events(self, start: float) -> Iterator[LaneEvent]:
        """All that was recorded. Args: `start`: of the trace, by rank 0's `time.perf_counter`."""
        start += self._ahead
        for lane, name, begin, end in self._spans:
            yield LaneEvent(lane, name, 1e6 * (begin - start), 1e6 * (end - begin))
        begin = (self._profile.base - _unix_of_clock()) / 1e3 - 1e6 * start  # microseconds
        for event in self._profile.events:
            yield LaneEvent(event.lane, event.name, begin + event.begin / 1e3, event.duration / 1e3)

    def _phase(self, name: str, begin: float, end: float) -> None:
        self._add(WAITS if name.startswith(WAIT) else PHASES, name.removeprefix(WAIT), begin, end)

    def _add(self, lane: str, name: str, begin: float, end: float) -> None:
        if len(self._spans) < _MOST:
            self._spans.append((lane, name, begin, end))


def horovod_events(timeline: list[TimelineEvent], start: float) -> Iterator[LaneEvent]:
    """Of Horovod's timeline, in which each tensor has a lane. `start`: as of `RankTrace.events`; on rank 0."""
    begin = _unix_of_clock() / 1e3 + 1e6 * start  # microseconds
    for event in timeline:
        yield LaneEvent(event.tensor, event.name, event.begin / 1e3 - begin, event.duration / 1e3)


def _unix_of_clock() -> int:
    """Unix time when this host's `time.perf_counter` was 0, in nanoseconds."""
    return time.time_ns() - time.perf_counter_ns()
