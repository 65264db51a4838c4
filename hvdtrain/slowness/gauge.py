"""Looks at intervals at Linux's counters of what keeps a process from its work, and says what has changed between.

What a kernel or a container does not show is 0. proc(5), proc_pid_stat(5), and of the kernel's documentation:
scheduler/sched-stats, accounting/psi, admin-guide/cgroup-v1/cpuacct, admin-guide/cgroup-v2 (cpu.stat, io.pressure).
Of connections to other hosts: tcp(7), `struct tcp_info` of linux/tcp.h.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hvdtrain.slowness.causes import NOTHING, Pressure
from hvdtrain.topology.control_group import group_folders, read_text

INTERVAL: Final = 2.0
"""Seconds from one look to the next, at least: a look takes up to a millisecond."""

_MOST_THREADS: Final = 64  # that are looked at; each takes 10 µs
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MAJOR_FAULTS, _DISK_TICKS = 9, 39  # places in /proc/PID/stat after the command's name
_STOLEN: Final = 7  # place in the first line of /proc/stat, after "cpu": user nice system idle iowait irq softirq steal
_IDLE: Final = (3, 4)
_ROUND_TRIP, _RETRANSMITTED, _ACKNOWLEDGED, _SEGMENTS, _BUSY = 68, 100, 120, 156, 168  # bytes into the structure
_SIZE: Final = 176
_SOME = re.compile(r"some .*total=(\d+)")


class Counts(NamedTuple):
    """What has been counted until now; only differences mean something. Times are in seconds."""

    # By number: how long it had a processor, and was ready and waited for one
    threads: Mapping[int, tuple[float, float]]
    # "busy" and "stolen" are of all processors of the host, and the first includes the second; others: see `Pressure`
    totals: Mapping[str, float]


@dataclass(frozen=True)
class Linux:
    """The counters of this host. Args: `root`: below it are proc and sys."""

    root: Path = Path("/")

    def read(self) -> Counts:
        """Of this process. It takes some hundred microseconds."""
        stat = self._proc("self/stat").rpartition(")")[2].split()
        busy, stolen = self._processors()
        groups = group_folders(self.root, "cpu")
        cpu = [_text(group / "cpu.stat") for group in groups]
        totals = {
            "busy": busy,
            "stolen": stolen,
            # Version 2 counts microseconds, version 1 nanoseconds.
            "throttled": sum(_named(of, "throttled_usec") / 1e6 + _named(of, "throttled_time") / 1e9 for of in cpu),
            "major_faults": _number(stat, _MAJOR_FAULTS),
            "swapped": _named(self._proc("vmstat"), "pswpin"),
            "memory_stall": self._stall("memory", groups),
            "io_stall": self._stall("io", groups),
            "disk_wait": _number(stat, _DISK_TICKS) / _TICKS,
            "read_bytes": _named(self._proc("self/io"), "read_bytes:"),
        }
        return Counts(self._threads(), totals)

    def _proc(self, name: str) -> str:
        return _text(self.root / "proc" / name)

    def _threads(self) -> dict[int, tuple[float, float]]:
        times = {}
        with suppress(OSError):
            for thread in sorted(os.listdir(self.root / "proc/self/task"), key=int)[:_MOST_THREADS]:
                words = self._proc(f"self/task/{thread}/schedstat").split()
                times[int(thread)] = _number(words, 0) / 1e9, _number(words, 1) / 1e9
        return times

    def _processors(self) -> tuple[float, float]:
        line = self._proc("stat").partition("\n")[0].split()[1:]
        ticks = [_number(line, place) for place in range(_STOLEN + 1)]
        busy = sum(count for place, count in enumerate(ticks) if place not in _IDLE)
        return busy / _TICKS, ticks[_STOLEN] / _TICKS

    def _stall(self, what: str, groups: Sequence[Path]) -> float:
        """Of this process's control group where that is counted, else of the host."""
        for text in (*(_text(group / f"{what}.pressure") for group in groups[:1]), self._proc(f"pressure/{what}")):
            if (match := _SOME.match(text)) is not None:
                return int(match[1]) / 1e6
        return 0.0


def _text(file: Path) -> str:
    try:
        return read_text(file) or ""
    except ValueError:  # not text
        return ""


def _number(words: list[str], place: int) -> float:
    try:
        return float(words[place])
    except (IndexError, ValueError):
        return 0.0


def _named(text: str, name: str) -> float:
    """Of lines "name number"."""
    match = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


class Connection(NamedTuple):
    """Counts since it was opened."""

    sent_bytes: float  # that the other side has confirmed
    busy: float  # seconds in which something was to be sent or to be confirmed
    retransmitted: float  # packets with data that were sent again
    segments: float  # all packets with data
    round_trip: float  # seconds, smoothed


def connections(files: Iterable[int]) -> dict[object, Connection]:
    """Those of `files` that are connections to other hosts, each by a key that no later one has."""
    counts: dict[object, Connection] = {}
    for file in files:
        with suppress(OSError, ValueError, struct.error):
            ends, info = _look(file)
            if ends is not None:
                counts[file, *ends] = _counted(info)
    return counts


def _look(file: int) -> tuple[tuple[object, object] | None, bytes]:
    """The two ends' addresses, None where both are on this host or it is not a connection; and the structure."""
    blocks = os.get_blocking(file)
    connection = socket.socket(fileno=file)  # which makes it non-blocking after socket.setdefaulttimeout()
    try:
        if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None, b""
        here, there = connection.getsockname(), connection.getpeername()
        if here[0] == there[0]:
            return None, b""
        return (here, there), connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    finally:
        connection.detach()  # or it would be closed
        os.set_blocking(file, blocks)


def _counted(info: bytes) -> Connection:
    if len(info) < _SIZE:  # before Linux 4.10
        return Connection(0, 0, 0, 0, 0)
    sent, busy = (struct.unpack_from("=Q", info, place)[0] for place in (_ACKNOWLEDGED, _BUSY))
    trip, again, segments = (
        struct.unpack_from("=I", info, place)[0] for place in (_ROUND_TRIP, _RETRANSMITTED, _SEGMENTS)
    )
    return Connection(sent, busy / 1e6, again, segments, trip / 1e6)


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
    wall, old, new = after[0] - before[0], before[2], after[2]
    grown = {name: _grown(old.totals[name], total) for name, total in new.totals.items()}
    busy, stolen, throttled = (grown.pop(name) for name in ("busy", "stolen", "throttled"))
    return Pressure(
        wall=wall,
        cpu=_grown(before[1], after[1]),
        queued=_queued(old.threads, new.threads),
        stolen=min(stolen / busy, 1.0) * wall if busy > 0 else 0.0,
        throttled=min(throttled, wall),  # it is the sum over all processors
        **grown,
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
