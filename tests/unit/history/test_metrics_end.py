"""What a run has measured last: of its last start only, and from lines that may be broken."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.run_folders import FakeRun, logged

from hvdtrain.engine import events
from hvdtrain.history.metrics_end import MetricsEnd, begun, measures, read_metrics_end
from hvdtrain.history.reading import number


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    metrics = FakeRun.begun(tmp_path).folder / "metrics.jsonl"
    end = read_metrics_end(metrics)
    assert (end.train, end.validation, end.end, end.step) == (None, None, None, 0)
    assert end.start is not None
    assert begun(metrics) == 1000.0
    assert end.time is not None
    assert abs(end.time - time.time()) < 60


def test_the_last_values_and_the_end(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).events(logged(5, 0.9), logged(10, 0.8)).ended()
    end = read_metrics_end(run.folder / "metrics.jsonl")
    assert (number(end.train, "step"), number(end.validation, "accuracy"), end.step) == (100, 0.9, 100)
    assert end.end is not None
    assert end.end["event"] == "ended"
    assert measures(end.train) == {"loss": 0.5, "accuracy": 0.75}
    assert measures(end.validation) == {"loss": 0.25, "accuracy": 0.9}


def test_measures_are_known_by_name_in_any_order() -> None:
    """A loop of a user's own gives them, the learning rate and the samples in the order it likes."""
    line = {
        "split": "train",
        "epoch": 0,
        "step": 3,
        "lr": 0.1,
        "accuracy": 0.5,
        "samples": 8,
        "loss": 1.0,
        "time": 1.8e9,
    }
    assert measures(line) == {"accuracy": 0.5, "loss": 1.0}
    assert measures({"step": 3, "time": 1.8e9}) == {}
    assert measures(None) == {}


def test_what_came_before_the_last_start_does_not_count(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).ended().events(events.RunStarted(80, 100, 50, 2))
    end = read_metrics_end(run.folder / "metrics.jsonl")
    assert (end.train, end.validation, end.end, end.step) == (None, None, None, 80)


def test_an_error_after_the_end_is_the_end(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path).ended().events(events.RunFailed(100, ValueError("a callback's")))
    end = read_metrics_end(run.folder / "metrics.jsonl").end
    assert end is not None
    assert end["error"] == "ValueError: a callback's"


def test_broken_lines_are_passed_over(tmp_path: Path) -> None:
    metrics = FakeRun.begun(tmp_path).events(logged(5)).folder / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(
            b'\x00\xff\n[1]\n{"split": []}\n{"event": "ended", "step": 1e999}\n' + b"[" * 9999 + b'\n{"split": "tra'
        )
    end = read_metrics_end(metrics)
    assert number(end.train, "step") == 5
    assert end.step == 5


def test_of_a_huge_file_the_end_is_enough(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    with metrics.open("wb") as file:
        file.truncate(10 * 2**30)  # a hole, which needs no disk
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"split": "train", "step": 7, "loss": 0.5, "time": 5.0}\n')
    end = read_metrics_end(metrics)
    assert number(end.train, "step") == 7
    assert (end.start, begun(metrics)) == (None, None)


def test_a_file_that_is_not_there_has_no_end(tmp_path: Path) -> None:
    assert read_metrics_end(tmp_path / "metrics.jsonl") == MetricsEnd()
    assert begun(tmp_path / "metrics.jsonl") is None
