"""The samples of the loop, sorted by what they belong to; and a ring of two by plain sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.overhead.where import PARTS, part_of, shares
from benchmarks.scaling import ping_pong

LOOP = "main (a.py:1);Engine._train_steps (hvdtrain/engine/engine.py:1)"


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        (["AdapterState.train_steps", "Measurement.measure", "Overhead.measure", "mse_loss"], "forward pass, loss"),
        (["AdapterState.train_steps", "Measurement.measure", "MeasureSums.add"], "sums of measures"),
        (["Engine._count", "Engine._after_step", "Engine._log", "Engine._emit"], "metrics, every 50 updates"),
        (["Engine._count", "Engine._after_step", "Engine._emit", "Lines.__call__"], "events"),
        (["WholeModelPasses._add", "StepTimer.end"], "times of the step's parts"),
        (["Engine._count"], "the rest"),
        ([], "the rest"),
    ],
)
def test_the_outermost_known_frame_counts(frames: list[str], part: str) -> None:
    assert part_of(frames) == part


def test_only_the_loop_s_samples_count() -> None:
    lines = [f"{LOOP};Meter.waits (m.py:2) 300", f"{LOOP} 700", "main (a.py:1);start (b.py:3) 5000"]
    found = shares(lines)
    assert found["taking the next batch"] == 0.3
    assert found["the rest"] == 0.7
    assert [*found] == [part for part, _ in PARTS]
    with pytest.raises(RuntimeError, match="300 samples"):
        shares(lines[:1])


def test_a_ring_by_plain_sockets_sums_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        program, port = str(Path(ping_pong.__file__)), str(taken.getsockname()[1])
    serve = [sys.executable, program, "serve", "127.0.0.1", port, "4096", "65536"]
    ask = [sys.executable, program, "ask", "127.0.0.1", port, "4096", "65536"]
    with subprocess.Popen(serve) as server:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=100, check=True)
        assert server.wait(100) == 0
    found = json.loads(done.stdout)
    assert found["latency"] > 0
    assert found["bandwidth"] > 0
    assert 0 < found["rings"]["4096"] < found["rings"]["65536"] * 10
