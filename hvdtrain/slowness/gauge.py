"""Looks at Linux's counters at intervals, and says what has changed between."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hvdtrain.slowness.counters import Counts, Linux
from hvdtrain.slowness.pressure import NOTHING, Pressure
from hvdtrain.slowness.tcp_info import Connection, connections

INTERVAL: Final = 2.0
"""Seconds from one look to the next, at least: a look takes up to a millisecond."""

_SUMS: Final = ("major_faults", "swapped", "memory_stall", "io_stall", "disk_wait", "read_bytes")


class Gauge:
    """Of this process.

    Args:
        files: the open files of connections to other ranks; others may be among them.
        linux: where counters are.
    """

    def __init__(self, files: Callable[[], Iterable[int]] = tuple, linux: Linux | None = None) -> None:
        self._files, self._linux = files, linux or Linux()
        self._last = self._look()

    def read(self) -> Pressure:
        """What has kept this process from its work since the last look; `NOTHING` where that was a moment ago."""
        if time.monotonic() - self._last[0] < INTERVAL:
            return NOTHING
        before, self._last = self._last, self._look()
        return _between(before, self._last)

    def _look(self) -> "_Look":
        counts = self._linux.read()
        return time.monotonic(), time.process_time(), counts, connections(self._files())


_Look = tuple[float, float, Counts, Mapping[object, Connection]]
"""When, the seconds that the process has computed until then, and what was counted."""


def _between(before: _Look, after: _Look) -> Pressure:
    wall = after[0] - before[0]
    old, new = before[2], after[2]
    busy = _grown(old.busy, new.busy)
    stolen = _grown(old.stolen, new.stolen) / busy if busy > 0 else 0.0
    return Pressure(
        wall=wall,
        cpu=_grown(before[1], after[1]),
        queued=_queued(old.threads, new.threads),
        stolen=min(stolen, 1.0) * wall,
        throttled=min(_grown(old.throttled, new.throttled), wall),  # it is the sum over all processors
        **{name: _grown(getattr(old, name), getattr(new, name)) for name in _SUMS},
        **_sent(before[3], after[3]),
    )


def _queued(before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]) -> float:
    """Of the busiest thread: others, such as Horovod's, wake up a thousand times a second, and delay nobody by that."""
    grown = [
        (cpu - before[thread][0], _grown(before[thread][1], queued))
        for thread, (cpu, queued) in after.items()
        if thread in before
    ]
    return max(grown, default=(0.0, 0.0))[1]


def _sent(before: Mapping[object, Connection], after: Mapping[object, Connection]) -> dict[str, float]:
    pairs = [(before[key], connection) for key, connection in after.items() if key in before]
    used = [(old, new) for old, new in pairs if new.sent_bytes > old.sent_bytes]
    return {
        "sent_bytes": sum(new.sent_bytes - old.sent_bytes for old, new in used),
        "send_busy": max((new.busy - old.busy for old, new in used), default=0.0),
        "retransmitted": sum(_grown(old.retransmitted, new.retransmitted) for old, new in used),
        "segments": sum(_grown(old.segments, new.segments) for old, new in used),
        "round_trip": max((new.round_trip for _, new in used), default=0.0),
    }


def _grown(old: float, new: float) -> float:
    """Counters of another cgroup may be smaller: the process was moved."""
    return max(0.0, new - old)
