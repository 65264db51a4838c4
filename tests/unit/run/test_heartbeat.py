"""A rank's heartbeats: written beside the training, complete at every moment, one file, and never in its way."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdtrain.activity import Activity
from hvdtrain.history.heartbeats import Heartbeat, heartbeat_file, read_heartbeats
from hvdtrain.run.watch.heartbeat import HeartbeatWriter, interval_of

DEADLINE = 60.0
FACTS = Heartbeat(
    rank=1, size=2, start="a", host="node", pid=os.getpid(), time=0.0, framework="torch", total_steps=100, epochs=2
)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def last(run: Path) -> Heartbeat | None:
    heard = read_heartbeats(run).get(1)
    return None if heard is None else heard.beat


def require_last(run: Path) -> Heartbeat:
    beat = last(run)
    assert beat is not None
    return beat


def test_it_tells_what_the_rank_does(tmp_path: Path) -> None:
    now = Activity()
    with HeartbeatWriter(tmp_path, FACTS, 0.01, now):
        now.begin("data", 7)
        now.reads = lambda: "reading FILE"
        wait_for(lambda: (beat := last(tmp_path)) and beat.reads == "reading FILE")
        beat = require_last(tmp_path)
        assert (beat.phase, beat.step, beat.total_steps, beat.epochs, beat.end) == ("data", 7, 100, 2, "")
        assert (beat.pid, beat.waits_in) == (os.getpid(), None)
        assert beat.memory is not None
        assert 2**20 < beat.memory < 2**40
        now.begin("step", 8)
        now.begin_wait(lambda: True, "gradients.3")
        wait_for(lambda: (beat := last(tmp_path)) and beat.waits_in == "gradients.3")
        now.begin_wait(lambda: None, "gradients.4")  # a block that computes
        wait_for(lambda: (beat := last(tmp_path)) and beat.collective == "gradients.4" and beat.waits_in is None)
    assert require_last(tmp_path).end == "ended"
    assert [path.name for path in (tmp_path / "heartbeats").iterdir()] == ["rank_1.json"]


def test_the_rate_of_steps_is_that_of_the_last_heartbeats(tmp_path: Path) -> None:
    now = Activity()
    now.begin("step", 1000)
    with HeartbeatWriter(tmp_path, FACTS, 0.01, now):
        wait_for(lambda: (beat := last(tmp_path)) and beat.steps_per_second == 0.0)  # steps before it do not count
        now.begin("step", 1010)
        wait_for(lambda: (beat := last(tmp_path)) and (beat.steps_per_second or 0.0) > 0.0)
        wait_for(lambda: (beat := last(tmp_path)) and beat.steps_per_second == 0.0)  # it has moved out of them


def test_a_failure_is_told_in_the_last_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad"), HeartbeatWriter(tmp_path, FACTS, 1000.0, Activity()):
        raise ValueError("bad record\nwith more lines")
    beat = require_last(tmp_path)
    assert (beat.end, beat.error) == ("failed", "ValueError: bad record")


def test_what_cannot_be_written_is_said_once_and_disturbs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hvdtrain"), "propagate", True)
    (tmp_path / "heartbeats").write_text("a file where the folder should be")
    with (
        caplog.at_level(logging.WARNING, "hvdtrain.run"),
        HeartbeatWriter(tmp_path, FACTS, 0.001, Activity()),
    ):
        wait_for(lambda: caplog.records)
        (tmp_path / "heartbeats").unlink()
        wait_for(heartbeat_file(tmp_path, FACTS.rank).exists)  # there is room again
    (record,) = caplog.records
    assert "no heartbeat was written" in record.getMessage()


def test_no_reader_ever_sees_half_a_heartbeat(tmp_path: Path) -> None:
    numbers: list[int] = []
    with HeartbeatWriter(tmp_path, FACTS, 0.0001, Activity()):
        wait_for(heartbeat_file(tmp_path, 1).exists)
        while len(numbers) < 300 or len(set(numbers)) < 3:  # the test's own limit ends it
            beat = last(tmp_path)
            assert beat is not None
            numbers.append(beat.beat)
    assert numbers == sorted(numbers)


class FakeCuda:
    """torch.cuda of a process whose GPU is number 3."""

    def __init__(self, has_nvml: bool) -> None:
        self.has_nvml, self.asked = has_nvml, 0

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 3 if threading.current_thread() is threading.main_thread() else 0

    def memory_reserved(self, device: int) -> int:
        return 2**30 + device

    def utilization(self, device: int) -> int:
        self.asked += 1
        if not self.has_nvml:
            raise ModuleNotFoundError("pynvml")
        return 40 + device


@pytest.mark.parametrize(("has_nvml", "use"), [(True, 0.43), (False, None)])
def test_the_gpu_is_the_one_of_the_main_thread(
    has_nvml: bool, use: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(has_nvml)
    module: Any = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", module)
    with HeartbeatWriter(tmp_path, FACTS, 0.001, Activity()):
        wait_for(lambda: (beat := last(tmp_path)) and beat.beat > 3)
    beat = require_last(tmp_path)
    assert (beat.gpu_memory, beat.gpu_use) == (2**30 + 3, use)
    assert has_nvml or cuda.asked == 1


def test_many_ranks_write_less_often() -> None:
    assert [interval_of(size, is_by_host=False) for size in (1, 64, 65, 4096)] == [2.0, 2.0, 10.0, 10.0]
    assert interval_of(4096, is_by_host=True) == 2.0
