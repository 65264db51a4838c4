"""A thread on each rank that writes every 2 s what the rank does, for `hvdtrain top`.

It reads `activity.now`, which the main thread writes in any case. There is one file a rank, and in jobs of many ranks
one file a host, replaced each time, so any host that sees the run folder can watch the run.
"""

import logging
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from hvdtrain import activity
from hvdtrain.activity import Activity
from hvdtrain.engine.memory import resident_bytes
from hvdtrain.errors import HvdtrainError, PeerError
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats, write_own

_SECONDS: Final = 2.0
_MANY_SECONDS: Final = 10.0
_MANY_RANKS: Final = 64
_RATE_BEATS: Final = 5  # over which the rate of steps is measured
_LAST_SECONDS: Final = 1.0  # for the last heartbeat, which must not keep a failed rank from ending
_LONGEST_ERROR: Final = 300

_log = logging.getLogger("hvdtrain.run")


def interval_of(size: int, is_by_host: bool) -> float:
    """Seconds between two heartbeats of a rank: a file system that many ranks share gets no more than it can bear."""
    return _SECONDS if size <= _MANY_RANKS or is_by_host else _MANY_SECONDS


class HeartbeatWriter:
    """Writes heartbeats while its block runs, `interval` seconds apart, and a last one when it ends.

    Args:
        run: the run folder.
        first: what stays the same in all of them.
        interval: in seconds.
        now: what the rank does.
        by_host: passes them on, where one rank writes for all of its host; None: each rank writes its own file.
    """

    def __init__(
        self,
        run: Path,
        first: Heartbeat,
        interval: float,
        now: Activity = activity.now,
        by_host: HostHeartbeats | None = None,
    ) -> None:
        self._run_folder, self._by_host, self._interval, self._now = run, by_host, interval, now
        self._same = replace(first, interval=interval)
        self._beats = 0
        self._end = self._error = ""
        self._fails_alone = False
        self._steps: deque[tuple[float, int]] = deque(maxlen=_RATE_BEATS)
        self._stopping = threading.Event()
        self._has_complained = False
        self._thread = threading.Thread(target=self._run, name="hvdtrain-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._gpu = _Gpu()
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._end = "ended" if error is None else "failed"
        self._error = "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST_ERROR]
        self._fails_alone = _is_of_this_rank(error)
        self._stopping.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        try:
            while True:
                is_last = self._stopping.is_set()
                self._write(self._beat())
                if is_last:
                    break
                self._stopping.wait(self._interval)
        except Exception as error:  # a defect here must not end the training
            _log.warning("this rank writes no heartbeats any more, so that `hvdtrain top` calls it silent: %s", error)

    def _write(self, beat: Heartbeat) -> None:
        """The disk may be full for a while."""
        try:
            if self._by_host is None:
                write_own(self._run_folder, beat)
            else:
                self._by_host.write(beat, at_once=self._fails_alone)
        except OSError as error:
            if not self._has_complained:
                _log.warning("no heartbeat was written, so that `hvdtrain top` calls this rank silent: %s", error)
            self._has_complained = True

    def _beat(self) -> Heartbeat:
        now, at = self._now, time.monotonic()
        self._steps.append((at, now.step))
        self._beats += 1
        return replace(
            self._same,
            time=round(time.time(), 3),
            beat=self._beats - 1,
            end=self._end,
            error=self._error,
            phase=now.phase,
            step=now.step,
            seconds=round(at - now.changed_at, 3),
            waits_in=now.waits_in(),
            collective=now.collective,
            reads=now.reads() if now.is_reading() else "",
            steps_per_second=_rate(self._steps),
            memory=resident_bytes() or None,
            gpu_memory=self._gpu.memory(),
            gpu_use=self._gpu.use(),
        )


def _is_of_this_rank(error: BaseException | None) -> bool:
    """Whether no other rank tells of it: the job may be killed before another one could pass it on."""
    if isinstance(error, HvdtrainError):
        return not error.joint and not isinstance(error, PeerError)
    return isinstance(error, Exception)


def _rate(steps: "deque[tuple[float, int]]") -> float | None:
    (begin, first), (end, last) = steps[0], steps[-1]
    return round((last - first) / (end - begin), 3) if end > begin else None


class _Gpu:
    """What torch, if this process has it, tells of its GPU. Nothing here waits for the device. To be made in the main
    thread: only that one knows which GPU is this rank's."""

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        self._cuda: Any = None
        self._tells_use = True
        with suppress(Exception):  # a torch that is half imported, or of another version
            if torch is not None and torch.cuda.is_initialized():
                self._cuda, self._device = torch.cuda, torch.cuda.current_device()

    def memory(self) -> int | None:
        return None if self._cuda is None else int(self._cuda.memory_reserved(self._device))

    def use(self) -> float | None:
        if self._cuda is None or not self._tells_use:
            return None
        try:
            return float(self._cuda.utilization(self._device)) / 100
        except Exception:
            self._tells_use = False
            return None
