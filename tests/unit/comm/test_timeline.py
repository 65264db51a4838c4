"""Horovod's timeline is read as Horovod writes it, with what was under way at its begin and its end."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.comm.horovod_world import allow_timeline
from hvdtrain.comm.timeline import Timeline, TimelineEvent, read_timeline
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

# Of a run of Horovod 0.28.1, shortened.
TEXT = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1000000}},
{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "hvdtrain.gradients.0"}},
{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},
{"ph": "E", "ts": 10, "pid": 1},{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 20, "pid": 1},\
{"ph": "X", "name": "1", "ts": 21, "pid": 1, "dur": 0},{"ph": "E", "ts": 30, "pid": 1},\
{"ph": "B", "name": "ALLREDUCE", "ts": 31, "pid": 1},{"ph": "B", "name": "MPI_ALLREDUCE", "ts": 32, "pid": 1},\
{"ph": "E", "ts": 40, "pid": 1},\
{"ph": "E", "ts": 41, "pid": 1, "args": {"dtype": "float32", "shape": "[3]"}},\
{"ph": "i", "name": "CYCLE_START", "ts": 42, "s": "g"},{"ph": "B", "name": "ALLREDUCE", "ts": 50, "pid": 1}]"""


def test_events_and_their_times() -> None:
    tensor = "hvdtrain.gradients.0"
    assert read_timeline(TEXT) == [
        TimelineEvent(tensor, "rank 1 is ready", 1_000_021_000, 0),
        TimelineEvent(tensor, "NEGOTIATE_ALLREDUCE", 1_000_020_000, 10_000),
        TimelineEvent(tensor, "MPI_ALLREDUCE", 1_000_032_000, 8_000),
        TimelineEvent(tensor, "ALLREDUCE", 1_000_031_000, 10_000),
    ]


def test_nothing_happened() -> None:
    assert read_timeline("") == read_timeline("[]") == []


def test_half_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        read_timeline(TEXT[:-20])


def test_one_process_has_none(tmp_path: Any) -> None:
    timeline = Timeline(SerialCommunicator(Topology.single()))
    timeline.start(tmp_path / "x")
    timeline.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_of_the_users_own_is_not_ended() -> None:
    environ: dict[str, str] = {}
    allow_timeline(environ)
    allow_timeline(environ)
    assert environ == {"HOROVOD_TIMELINE": "DYNAMIC"}
    with pytest.raises(UsageError, match="one timeline at a time"):
        allow_timeline({"HOROVOD_TIMELINE": "/tmp/mine.json"})
