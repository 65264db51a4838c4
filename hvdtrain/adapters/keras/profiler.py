"""TensorFlow's profiler: what each operation of the host and each kernel of a GPU took."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.profile import Profile, ProfiledEvent

_START = "profile_start_time"


class TensorFlowProfiler:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hvdtrain-trace-")

    def start(self) -> None:
        tf.profiler.experimental.start(self._folder.name)

    def stop(self) -> Profile:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        with self._folder as folder:
            for file in Path(folder).rglob("*.xplane.pb"):
                space.MergeFromString(file.read_bytes())
        return profile_of(space)


def profile_of(space: Any) -> Profile:
    """Read TensorFlow's own format (tsl/profiler/protobuf/xplane.proto): lines of planes are threads and streams."""
    starts = [stat.uint64_value for plane in space.planes for stat in _stats(plane, _START)]
    base = starts[0] if starts else 0
    return Profile(base, [event for plane in space.planes for event in _events(plane, base)])


def _stats(plane: Any, name: str) -> Iterator[Any]:
    yield from (stat for stat in plane.stats if plane.stat_metadata[stat.metadata_id].name == name)


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
