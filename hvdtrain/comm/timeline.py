"""Horovod's timeline, which rank 0 records: when which tensor was negotiated, and when it was reduced.

It can begin after Horovod's start only where `comm.horovod.allow_timeline` was called before that.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hvdtrain.comm.communicator import Communicator


class TimelineEvent(NamedTuple):
    """What Horovod did for a tensor.

    Attributes:
        tensor: its name.
        name: what: "NEGOTIATE_ALLREDUCE", "ALLREDUCE", …; or the rank that was ready, in an event without a duration.
        begin: nanoseconds of Unix time, of rank 0's clock.
        duration: nanoseconds.
    """

    tensor: str
    name: str
    begin: int
    duration: int


class Timeline(Protocol):
    """Records into a file, on rank 0. To be used on all ranks."""

    def start(self, file: Path) -> None:
        """Begin."""

    def stop(self) -> None:
        """End: the file is complete."""


class HorovodTimeline:
    """Implements `Timeline`."""

    def start(self, file: Path) -> None:
        _basics().start_timeline(str(file))

    def stop(self) -> None:
        _basics().stop_timeline()


class NoTimeline:
    """Implements `Timeline` for one process, which has no Horovod."""

    def start(self, file: Path) -> None:
        pass

    def stop(self) -> None:
        pass


def timeline_of(comm: Communicator) -> Timeline:
    """Of the ranks of `comm`."""
    return HorovodTimeline() if comm.topology.is_distributed else NoTimeline()


def _basics() -> Any:
    from horovod.common import process_sets

    return process_sets._basics


def read_timeline(text: str) -> list[TimelineEvent]:
    """The events of a file; what was under way at its begin or end is left out.

    Raises:
        ValueError: it is no timeline of Horovod's.
    """
    lines = json.loads(text) if text.strip() else []
    tensors: dict[int, str] = {}
    started, events = 0, []
    pending: dict[int, list[tuple[str, int]]] = {}  # what has begun for each tensor, the innermost last
    for line in lines:
        arguments, pid = line.get("args", {}), line.get("pid", 0)
        match line["ph"]:
            case "M" if "start_time_since_epoch_in_micros" in arguments:
                started = int(arguments["start_time_since_epoch_in_micros"])
            case "M" if "name" in arguments:
                tensors[pid] = arguments["name"]
            case "B":
                pending.setdefault(pid, []).append((line["name"], line["ts"]))
            case "E" if pending.get(pid):
                name, begin = pending[pid].pop()
                events.append(_event(tensors[pid], name, started + begin, line["ts"] - begin))
            case "X":
                events.append(_event(tensors[pid], f"rank {line['name']} is ready", started + line["ts"], 0))
    return events


def _event(tensor: str, name: str, begin: int, duration: int) -> TimelineEvent:
    return TimelineEvent(tensor, name, 1000 * begin, 1000 * duration)
