"""What a framework's profiler records, in one form for both; a framework is imported only when it is used."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol


class ProfiledEvent(NamedTuple):
    """Something that took time."""

    lane: str  # where it happened: a thread of the host, or a stream of a device
    name: str
    begin: float  # nanoseconds since `Profile.base`
    duration: float  # nanoseconds


class Profile(NamedTuple):
    """Attributes: `base`: nanoseconds of Unix time; `events`: in any order."""

    base: int
    events: Sequence[ProfiledEvent]


class Profiler(Protocol):
    """Records what a framework does in this process: operations of the host, kernels of a GPU. Used once."""

    def start(self) -> None:
        """Begin to record."""

    def stop(self) -> Profile:
        """End, and return what was recorded. It may take seconds."""


_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "99"
"""Otherwise it writes two lines to standard error on each rank: it has begun, it has ended."""

_OF_DEVICES: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


class TorchProfiler:
    def __init__(self) -> None:
        os.environ.setdefault(_LOG_LEVEL, _SILENT)  # before the first profile of a process
        from torch.cuda import is_available
        from torch.profiler import ProfilerActivity, profile

        devices = [ProfilerActivity.CUDA] if is_available() else []
        self._profile: Any = profile(activities=[ProfilerActivity.CPU, *devices])
        self.start = self._profile.start

    def stop(self) -> Profile:
        self._profile.stop()
        with tempfile.TemporaryDirectory(prefix="hvdtrain-trace-") as folder:
            file = Path(folder, "torch.json")
            self._profile.export_chrome_trace(str(file))
            content = json.loads(file.read_text())
        return kineto_profile(content)


def kineto_profile(content: Mapping[str, Any]) -> Profile:
    """Read a trace as Kineto writes it: times in microseconds, since "baseTimeNanoseconds" where it says so."""
    spans = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    events = [
        ProfiledEvent(_lane(event), str(event["name"]), 1000 * float(event["ts"]), 1000 * float(event.get("dur", 0)))
        for event in spans
        if event.get("cat") != "Trace"  # the whole of it
    ]
    return Profile(int(content.get("baseTimeNanoseconds", 0)), events)


def _lane(event: Mapping[str, Any]) -> str:
    if event.get("cat") in _OF_DEVICES:
        return f"GPU {event['pid']}, stream {event['tid']}"
    return f"thread {event['tid']}"


class TensorFlowProfiler:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hvdtrain-trace-")

    def start(self) -> None:
        from tensorflow import profiler

        profiler.experimental.start(self._folder.name)

    def stop(self) -> Profile:
        """Read TensorFlow's own format (tsl/profiler/protobuf/xplane.proto): lines are threads and streams."""
        from tensorflow import profiler
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        with self._folder as folder:
            for file in Path(folder).rglob("*.xplane.pb"):
                space.MergeFromString(file.read_bytes())
        base = next((stat.uint64_value for plane in space.planes for stat in _starts(plane)), 0)
        return Profile(base, [event for plane in space.planes for event in _events(plane, base)])


def _starts(plane: Any) -> Iterator[Any]:
    yield from (stat for stat in plane.stats if plane.stat_metadata[stat.metadata_id].name == "profile_start_time")


def _events(plane: Any, base: int) -> Iterator[ProfiledEvent]:
    is_host = plane.name.startswith("/host")
    for line in plane.lines:
        # Times are since the start where TensorFlow has put the lines of all threads together, else of Unix.
        begin = line.timestamp_ns if line.timestamp_ns < base or not base else line.timestamp_ns - base
        name = line.display_name or line.name or str(line.id)
        lane = f"thread {name}" if is_host else f"{plane.name} {name}"
        for event in line.events:
            metadata = plane.event_metadata[event.metadata_id]
            text = metadata.display_name or metadata.name
            yield ProfiledEvent(lane, text, begin + event.offset_ps / 1000, event.duration_ps / 1000)
