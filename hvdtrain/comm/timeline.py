"""Horovod's timeline, which rank 0 records: when which tensor was negotiated, and when it was reduced.

It can begin after Horovod's start only where `horovod_world.allow_timeline` was called before that.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.comm.communicator import Communicator


class TimelineEvent(NamedTuple):
    """What Horovod did for a tensor."""

    tensor: str
    name: str  # "NEGOTIATE_ALLREDUCE", "ALLREDUCE", …; or the rank that was ready, in an event without a duration
    begin: int  # nanoseconds of Unix time, of rank 0's clock
    duration: int  # nanoseconds


class Timeline:
    """Records into a file, on rank 0. To be used on all ranks; one process alone records nothing."""

    def __init__(self, comm: Communicator) -> None:
        self._basics: Any = None
        if comm.topology.is_distributed:
            from horovod.common import process_sets

            self._basics = process_sets._basics

    def start(self, file: Path) -> None:
        if self._basics is not None:
            self._basics.start_timeline(str(file))

    def stop(self) -> None:
        """End: the file is complete."""
        if self._basics is not None:
            self._basics.stop_timeline()


def read_timeline(text: str) -> list[TimelineEvent]:
    """The events of a file; what was under way at its beginning or end is left out. ValueError: it is not Horovod's
    timeline."""
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
                times = 1000 * (started + begin), 1000 * (line["ts"] - begin)
                events.append(TimelineEvent(tensors[pid], name, *times))
            case "X":
                ready = f"rank {line['name']} is ready"
                events.append(TimelineEvent(tensors[pid], ready, 1000 * (started + line["ts"]), 0))
    return events
