"""What a framework's profiler records has names, threads and times of this process's clock."""

from __future__ import annotations

import time
from typing import Any

from hvdtrain.adapters.profile import Profile, Profiler, TensorFlowProfiler, TorchProfiler, kineto_profile


def profiled(profiler: Profiler, work: Any) -> tuple[Profile, tuple[int, int]]:
    """The profile of some work, and when it was done."""
    profiler.start()
    begin = time.time_ns()
    work()
    end = time.time_ns()
    return profiler.stop(), (begin, end)


def require_within(profile: Profile, name: str, times: tuple[int, int]) -> None:
    slack = 5_000_000  # clocks of the profiler and of Python are calibrated against each other
    found = [event for event in profile.events if name in event.name]
    assert found
    for event in found:
        assert event.lane.startswith("thread ")
        assert times[0] - slack <= profile.base + event.begin
        assert profile.base + event.begin + event.duration <= times[1] + slack


def test_torch() -> None:
    import torch

    matrix = torch.ones(64, 64)
    profile, times = profiled(TorchProfiler(), lambda: matrix @ matrix)
    require_within(profile, "aten::mm", times)


def test_a_kernel_is_in_the_lane_of_its_stream() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5.5, "dur": 2.0},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 0, "dur": 9},
        {"ph": "M", "name": "process_name", "pid": 0},
    ]
    profile = kineto_profile({"traceEvents": events, "baseTimeNanoseconds": 1000})
    assert profile == Profile(1000, [("GPU 0, stream 7", "gemm", 5500.0, 2000.0)])  # type: ignore[list-item]


def test_tensorflow() -> None:
    import tensorflow as tf

    matrix = tf.ones([64, 64])
    profile, times = profiled(TensorFlowProfiler(), lambda: tf.matmul(matrix, matrix).numpy())
    require_within(profile, "MatMul", times)
