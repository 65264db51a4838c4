"""A trace of one process: which updates it contains, what is in its file, and that nothing of it stays behind."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hvdtrain import activity
from hvdtrain.adapters.profile import Profile, ProfiledEvent
from hvdtrain.adapters.step_timer import SpanSink
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.comm.timeline import Timeline
from hvdtrain.config.value_syntax import trace_steps
from hvdtrain.engine import events
from hvdtrain.run.tracing.trace_file import LaneEvent, lines_of, most_of_each, write_trace
from hvdtrain.run.tracing.tracer import Tracer
from hvdtrain.topology import Topology

HOROVOD = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 0}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "bucket"}},
    {"ph": "B", "name": "ALLREDUCE", "ts": 0, "pid": 1},
    {"ph": "E", "ts": 50, "pid": 1},
]


@dataclass
class Played:
    """An adapter, a profiler and Horovod's timeline."""

    tell: SpanSink | None = None
    begun_at: int = 0
    done: list[str] = field(default_factory=list)
    file: Path | None = None

    def tell_parts(self, tell: SpanSink | None) -> None:
        self.tell = tell

    def start(self, file: Path | None = None) -> None:
        if file is None:
            self.begun_at = time.time_ns()
            self.done.append("profiler")
        else:
            self.done.append("timeline")
            self.file = file

    def stop(self) -> Profile:
        self.done.append("stop")
        if self.file is not None:
            now = time.time_ns() // 1000
            HOROVOD[0]["args"]["start_time_since_epoch_in_micros"] = now  # type: ignore[index]
            self.file.write_text(json.dumps(HOROVOD))
        events = [
            ProfiledEvent("thread 7", "aten::mm", 2_000_000.0, 1_000_000.0),
            ProfiledEvent("thread 7", "late", -9e9, 1.0),
        ]
        return Profile(self.begun_at, events)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def tracer(tmp_path: Path, played: Played) -> Any:
    def made(steps: str, timeline: Played | None = None) -> Tracer:
        alone, adapter = SerialCommunicator(Topology.single()), played
        opened: Any = played
        return Tracer(
            alone, adapter, trace_steps(steps), tmp_path / "traces", lambda: opened, timeline or Timeline(alone)
        )  # type: ignore[arg-type]

    return made


def run(tracer: Tracer, played: Played, steps: int, start: int = 0) -> None:
    """Events as a training sends them, whose adapter tells its parts."""
    tracer(events.RunStarted(start, steps, steps, 1))
    for step in range(start + 1, steps + 1):
        activity.now.begin("step", step - 1)
        if played.tell is not None:
            now = time.perf_counter()
            played.tell("forward", now, now + 0.001)
        activity.now.begin("data", step)
        tracer(events.StepEnded(0, step))
    tracer(events.RunEnded(steps, 1, True))


def content(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    (file,) = (folder / "traces").iterdir()
    with gzip.open(file) as stream:
        return file.name, json.load(stream)["traceEvents"]


def spans(lines: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of each (process, lane)."""
    processes = {line["pid"]: line["args"]["name"] for line in lines if line["name"] == "process_name"}
    lanes = {(line["pid"], line["tid"]): line["args"]["name"] for line in lines if line["name"] == "thread_name"}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if line["ph"] != "M":
            found.setdefault((processes[line["pid"]].split()[0], lanes[line["pid"], line["tid"]]), []).append(line)
    return found


def test_what_all_ranks_record_is_bounded() -> None:
    assert [most_of_each(ranks) for ranks in (1, 8, 16, 4000)] == [500_000, 500_000, 250_000, 1000]
    events = [LaneEvent("steps", f"update {number}", float(number), 1.0) for number in range(5)]
    assert gzip.decompress(lines_of(0, "rank 0", [], events, most=2)).count(b'"ph": "X"') == 2


def test_the_updates_that_were_asked_for(tmp_path: Path, tracer: Any, played: Played) -> None:
    timeline = Played()
    run(tracer("3:5", timeline), played, 9)
    name, lines = content(tmp_path)
    assert name == "steps_3_5.json.gz"
    found = spans(lines)
    assert [span["name"] for span in found["rank", "steps"]] == ["update 3", "update 4", "update 5"]
    assert [span["name"] for span in found["rank", "parts of steps"]] == ["forward"] * 3
    assert {span["name"] for span in found["rank", "phases"]} == {"data", "step"}
    assert [span["name"] for span in found["rank", "thread 7"]] == ["aten::mm"]  # what is before the trace is left out
    assert [span["name"] for span in found["Horovod,", "bucket"]] == ["ALLREDUCE"]
    assert all(span["ts"] >= 0 for lane in found.values() for span in lane)
    assert all(later["ts"] >= span["ts"] + span["dur"] - 1 for span, later in _pairs(found["rank", "steps"]))
    assert timeline.done == ["timeline", "stop"]
    assert played.done == ["profiler", "stop"]


def _pairs(lane: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(lane, lane[1:], strict=False))


def test_nothing_of_it_stays_behind(tracer: Any, played: Played) -> None:
    run(tracer("2"), played, 20)
    assert played.tell is None
    assert activity.now.trace is None


@pytest.mark.parametrize(
    ("steps", "start", "end", "name"),
    [
        ("1:2", 0, 4, "steps_1_2"),
        ("2", 0, 20, "steps_11_12"),
        ("2", 100, 120, "steps_111_112"),
        ("3:9", 5, 20, "steps_6_9"),
        ("3:9", 0, 5, "steps_3_5"),  # it ended early
    ],
)
def test_where_a_training_starts_and_ends(
    tmp_path: Path, tracer: Any, played: Played, steps: str, start: int, end: int, name: str
) -> None:
    run(tracer(steps), played, end, start)
    assert content(tmp_path)[0] == f"{name}.json.gz"


@pytest.mark.parametrize(("steps", "start", "told"), [("30:40", 0, True), ("3:4", 8, False)])
def test_no_update_of_them(
    tmp_path: Path, tracer: Any, played: Played, steps: str, start: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "hvdtrain.run"):
        run(tracer(steps), played, 20, start)
    assert not (tmp_path / "traces").exists()
    assert played.done == []
    assert ("No trace was written: training ended before update 30." in caplog.text) == told
    assert ("No trace will be written: training goes on after update 8." in caplog.text) != told


def test_a_training_that_fails_is_not_held_up(tmp_path: Path, tracer: Any, played: Played) -> None:
    own = tracer("1:9")
    own(events.RunStarted(0, 9, 9, 1))
    own(events.StepEnded(0, 1))
    own(events.RunFailed(1, ValueError()))
    assert (played.tell, activity.now.trace, played.done) == (None, None, ["profiler"])
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_trace_that_cannot_be_written_costs_nothing(
    tmp_path: Path, tracer: Any, played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "traces").write_text("not a folder")
    with caplog.at_level("WARNING", "hvdtrain.run"):
        run(tracer("1:2"), played, 4)
    assert "could not be written" in caplog.text


def test_a_file_of_several_parts(tmp_path: Path) -> None:
    one = lines_of(
        0, 'rank 0 on "a"', ["first"], [LaneEvent("second", "é\n", 1.0, 2.5), LaneEvent("first", "x", 3.0, 0)]
    )
    two = lines_of(1, "rank 1", [], [])
    write_trace(tmp_path / "t.json.gz", [one, two], {"a": 1})
    with gzip.open(tmp_path / "t.json.gz") as stream:
        lines = json.load(stream)["traceEvents"]
    found = spans(lines)
    assert found["rank", "second"] == [{"name": "é\n", "pid": 0, "tid": 1, "ts": 1.0, "ph": "X", "dur": 2.5}]
    assert found["rank", "first"] == [{"name": "x", "pid": 0, "tid": 0, "ts": 3.0, "ph": "i", "s": "t"}]
    assert [line["args"]["name"] for line in lines if line["name"] == "process_name"] == ['rank 0 on "a"', "rank 1"]


class Failing(Played):
    """Its profiler fails when it begins, or when it ends."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def start(self, file: Path | None = None) -> None:
        if self.when == "start":
            raise RuntimeError("another profiler is running")
        super().start(file)

    def stop(self) -> Profile:
        super().stop()
        raise OSError("no space")


@pytest.mark.parametrize(("when", "done"), [("start", []), ("stop", ["profiler", "stop"])])
def test_a_profiler_that_fails_costs_its_own_events_only(when: str, done: list[str], tmp_path: Path) -> None:
    played: Any = Failing(when)
    alone = SerialCommunicator(Topology.single())
    run(Tracer(alone, played, trace_steps("3:5"), tmp_path / "traces", lambda: played, Timeline(alone)), played, 9)
    assert played.done == done
    found = spans(content(tmp_path)[1])
    assert len(found["rank", "steps"]) == 3
    assert ("rank", "thread 7") not in found
