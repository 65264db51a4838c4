"""Begins and ends a trace at its updates, on all ranks together and on one clock, and writes its file."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.profile import Profiler
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import SAVE_SECONDS, do_while_others_wait, gather_bytes
from hvdtrain.comm.timeline import Timeline, read_timeline
from hvdtrain.config.value_syntax import TraceSteps
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.tracing.rank_trace import LANES, RankTrace, horovod_events
from hvdtrain.run.tracing.trace_file import lines_of, most_of_each, write_trace
from hvdtrain.version import versions

_HOROVOD: Final = "Horovod, as rank 0 sees it"
_HOROVOD_FILE: Final = "horovod.json"
_ROUNDS: Final = 32  # of looking at the clocks

_log = logging.getLogger("hvdtrain.run")


@dataclass(eq=False)
class Tracer:
    """A callback for a run's events, on every rank. Collective at the beginning and at the end of the trace."""

    comm: Communicator
    adapter: Adapter
    steps: TraceSteps
    folder: Path
    open_profiler: Callable[[], Profiler]
    timeline: Timeline
    _window: tuple[int, int] | None = field(default=None, init=False)  # what is still to be recorded
    _trace: "RankTrace | None" = field(default=None, init=False)  # what is being recorded
    _first: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)
    _start: float = field(default=0.0, init=False)  # of the trace, by rank 0's clock

    def __call__(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step):
                self._window = self.steps.after(step)
                if self._window is None:
                    _log.warning("No trace will be written: training goes on after update %d.", step)
                self._begin_after(step)
            case events.StepEnded(step=step):
                if self._trace is not None:
                    self._trace.step_ended(step)
                    if step >= self._last:
                        self._end(self._trace, step)
                self._begin_after(step)
            case events.RunEnded(step=step):
                if self._trace is not None:
                    self._end(self._trace, step)
                if self._window is not None:
                    _log.warning("No trace was written: training ended before update %d.", self._window[0])
            case events.RunFailed() if self._trace is not None:
                self._trace.leave()  # its profiler cannot be stopped from here: another thread has started it

    def _begin_after(self, step: int) -> None:
        if self._window is None or step + 1 < self._window[0]:
            return
        (self._first, self._last), self._window = self._window, None
        if self.comm.topology.is_root:
            with suppress(OSError):  # writing the trace will tell
                self.folder.mkdir(parents=True, exist_ok=True)
        self.timeline.start(self.folder / _HOROVOD_FILE)
        clock = clock_offsets(self.comm)[self.comm.topology.rank]
        _log.info("This rank's clock is ahead of rank 0's by %.6f s, ± %.6f s", *clock)
        trace = RankTrace(self.adapter, self.open_profiler(), clock.seconds)
        do_while_others_wait(self.comm, trace.prepare, "hvdtrain.trace.prepare", SAVE_SECONDS)
        self.comm.barrier("hvdtrain.trace.begin")
        self._start = float(self.comm.broadcast(np.array([time.perf_counter()]), "hvdtrain.trace.start")[0])
        trace.begin()
        self._trace = trace

    def _end(self, trace: RankTrace, step: int) -> None:
        self._trace = None
        trace.leave()
        self.timeline.stop()
        lines = do_while_others_wait(self.comm, lambda: self._lines(trace), "hvdtrain.trace.lines", SAVE_SECONDS)
        parts = gather_bytes(self.comm, lines, "hvdtrain.trace.parts")
        do_while_others_wait(self.comm, lambda: self._write(parts, step), "hvdtrain.trace.file", SAVE_SECONDS)

    def _lines(self, trace: RankTrace) -> bytes:
        trace.stop()
        rank, most = self.comm.topology.rank, most_of_each(self.comm.topology.size)
        return lines_of(rank, f"rank {rank} on {node_name()}", LANES, trace.events(self._start), most)

    def _write(self, parts: list[bytes], step: int) -> None:
        """On rank 0. Training does not end because a trace cannot be written."""
        if not self.comm.topology.is_root:
            return
        file = self.folder / f"steps_{self._first}_{step}.json.gz"
        about = {"first_update": self._first, "last_update": step, "versions": versions()}
        try:
            write_trace(file, [*parts, *self._horovod_part(len(parts))], about)
        except OSError as error:
            _log.warning("The trace %s could not be written: %s", file, error)
            return
        where = f"trace of updates {self._first} to {step}: {file}"
        print(f"hvdtrain: {where} (https://ui.perfetto.dev shows it)", flush=True)

    def _horovod_part(self, process: int) -> list[bytes]:
        """Horovod's events, after the ranks' own; none where one process trains alone."""
        file = self.folder / _HOROVOD_FILE
        if not file.exists():
            return []
        try:
            timeline = read_timeline(file.read_text())
        except (ValueError, KeyError) as error:
            _log.warning("Horovod's timeline could not be read: %s", error)
            return []
        finally:
            file.unlink()
        return [lines_of(process, _HOROVOD, (), horovod_events(timeline, self._start))]


class Offset(NamedTuple):
    """Seconds by which a clock is ahead of rank 0's, and by how much that may be wrong."""

    seconds: float
    error: float


def clock_offsets(comm: Communicator) -> list[Offset]:
    """Of `time.perf_counter` of each rank, found by collectives, which need no connection of their own. Collective; it
    takes some milliseconds.

    No rank leaves a collective before all have entered it. So a time at which rank 0 entered is before every time at
    which rank r left the same collective, and the reverse: each pair of such times is a bound on the difference of the
    two clocks (Marzullo and Owicki 1983; NTP intersects such intervals too). The collectives that happened to be the
    fastest leave the least room between the bounds.
    """
    passages = []
    for _ in range(_ROUNDS):
        entered = time.perf_counter()
        comm.barrier("hvdtrain.trace.clock")
        passages.append((entered, time.perf_counter()))
    rows = comm.allgather(np.array([passages], np.float64), "hvdtrain.trace.passages").tolist()
    return [offset(rows[0], row) for row in rows]


def offset(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Offset:
    """Of the clock of a rank that has entered and left each collective at the times `other`, and rank 0 at `first`."""
    most = min(left - entered for (entered, _), (_, left) in zip(first, other, strict=True))
    least = max(entered - left for (_, left), (entered, _) in zip(first, other, strict=True))
    return Offset((least + most) / 2, abs(most - least) / 2)
