"""Counters of Linux that say what keeps a process from its work. What a kernel or a container does not show is 0.

proc(5), proc_pid_stat(5), and of the kernel's documentation: scheduler/sched-stats, accounting/psi,
admin-guide/cgroup-v1/cpuacct, admin-guide/cgroup-v2 (cpu.stat, io.pressure).
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvdtrain.launch.processes.control_group import group_folders, read_text

_MOST_THREADS: Final = 64  # that are looked at; each takes 10 µs
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MAJOR_FAULTS, _DISK_TICKS = 9, 39  # places in /proc/PID/stat after the command's name
_STOLEN: Final = 7  # place in the first line of /proc/stat, after "cpu": user nice system idle iowait irq softirq steal
_IDLE: Final = (3, 4)
_SOME = re.compile(r"some .*total=(\d+)")


@dataclass(frozen=True, slots=True)
class Counts:
    """What has been counted until now; only differences mean something. Times are in seconds.

    Attributes:
        threads: of each thread, by its number: how long it had a processor, and was ready and waited for one.
        busy, stolen: of all processors of the host; `busy` includes `stolen`.

    The others are as in `Pressure`.
    """

    threads: Mapping[int, tuple[float, float]]
    busy: float
    stolen: float
    throttled: float
    major_faults: float
    swapped: float
    memory_stall: float
    io_stall: float
    disk_wait: float
    read_bytes: float


@dataclass(frozen=True)
class Linux:
    """The counters of this host. Args: `root`: below it are proc and sys."""

    root: Path = Path("/")

    def read(self) -> Counts:
        """Of this process. It takes some hundred microseconds."""
        stat = self._own_stat()
        busy, stolen = self._processors()
        groups = group_folders(self.root, "cpu")
        return Counts(
            threads=self._threads(),
            busy=busy,
            stolen=stolen,
            throttled=sum(_throttled(_text(group / "cpu.stat")) for group in groups),
            major_faults=_number(stat, _MAJOR_FAULTS),
            swapped=_named(self._proc("vmstat"), "pswpin"),
            memory_stall=self._stall("memory", groups),
            io_stall=self._stall("io", groups),
            disk_wait=_number(stat, _DISK_TICKS) / _TICKS,
            read_bytes=_named(self._proc("self/io"), "read_bytes:"),
        )

    def _proc(self, name: str) -> str:
        return _text(self.root / "proc" / name)

    def _own_stat(self) -> list[str]:
        return self._proc("self/stat").rpartition(")")[2].split()

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


def _throttled(text: str) -> float:
    """Version 2 counts microseconds, version 1 nanoseconds."""
    return _named(text, "throttled_usec") / 1e6 + _named(text, "throttled_time") / 1e9
