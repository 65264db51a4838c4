"""torch's profiler: what each operation of the host and each kernel of a GPU took."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from hvdtrain.adapters.profile import Profile, ProfiledEvent

_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "99"
"""Otherwise it writes two lines to standard error on each rank: it has begun, it has ended."""

_OF_DEVICES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


class TorchProfiler:
    def __init__(self) -> None:
        os.environ.setdefault(_LOG_LEVEL, _SILENT)  # before the first profile of a process
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile: Any = profile(activities=activities)

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> Profile:
        self._profile.stop()
        with tempfile.TemporaryDirectory(prefix="hvdtrain-trace-") as folder:
            file = Path(folder, "torch.json")
            self._profile.export_chrome_trace(str(file))
            content = json.loads(file.read_text())
        return profile_of(content)


def profile_of(content: dict[str, Any]) -> Profile:
    """Read a trace as Kineto writes it: times in microseconds, since "baseTimeNanoseconds" where it says so."""
    spans = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    events = [
        ProfiledEvent(_lane(event), str(event["name"]), 1000 * float(event["ts"]), 1000 * float(event.get("dur", 0)))
        for event in spans
        if event.get("cat") != "Trace"  # the whole of it
    ]
    return Profile(int(content.get("baseTimeNanoseconds", 0)), events)


def _lane(event: dict[str, Any]) -> str:
    if event.get("cat") in _OF_DEVICES:
        return f"GPU {event['pid']}, stream {event['tid']}"
    return f"thread {event['tid']}"
