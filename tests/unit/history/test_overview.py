"""Runs at a glance: of every state, from every folder, whatever some of them lack."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.run_folders import FakeRun, logged

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine import events
from hvdtrain.errors import UsageError
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.history.overview import Measure, overview, overviews, require_folders
from hvdtrain.run.run_folder import RunFolder


def test_a_finished_run(tmp_path: Path) -> None:
    found = overview(FakeRun.begun(tmp_path / "run").ended().folder)
    assert (found.name, found.state.word, found.framework, found.task) == ("run", "finished", "torch", "digits")
    assert (found.workers, found.steps, found.seconds, found.begun) == (2, 100, 9.0, 1000.0)
    assert found.measure == Measure("accuracy", 0.9)
    assert found.problems == ()


def test_time_counts_through_all_restarts(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run").ended(goodput={"seconds": {"total": 99.0}})
    assert overview(run.folder).seconds == 99.0


def test_the_measure_that_was_asked_for_is_told_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """And all its time, where it was interrupted and has never ended."""
    run = FakeRun.begun(tmp_path / "run", TrainConfig(best_metric="top5"))
    run.events(events.Evaluated(0, 10, 359, 0.1, {"accuracy": 0.5, "top5": 0.75}))
    assert overview(run.folder).measure == Measure("top5", 0.75)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "resumed", "step": 10, "begun": 5000.0, "time": 5001.0}\n')
        file.write('{"split": "train", "step": 12, "loss": 1.0, "samples": 1, "time": 5007.0}\n')
    assert overview(run.folder).seconds == 4007.0


def test_the_measure_that_decides_is_told_with_its_best(tmp_path: Path) -> None:
    best = {"metric": "accuracy", "value": 0.95, "step": 50, "epoch": 0}
    assert overview(FakeRun.begun(tmp_path / "run").ended(best=best).folder).measure == Measure("accuracy", 0.9, 0.95)


def test_a_running_run_is_told_by_its_metrics_and_heartbeats(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run", TrainConfig(framework="auto")).events(logged(7, loss=0.5))
    run.beats(
        Heartbeat(
            rank=0, size=2, start="a", host="h", pid=1, time=time.time(), step=9, total_steps=100, framework="torch"
        )
    )
    folder = RunFolder(run.folder, 1)
    folder.claim()
    found = overview(run.folder)
    folder.release()
    assert (found.state.word, found.framework, found.task) == ("running", "torch", "digits")
    assert (found.workers, found.steps, found.total_steps, found.samples_per_second) == (2, 9, 100, 1234.0)
    assert found.measure == Measure("training accuracy", 0.75)
    assert found.seconds is not None
    assert found.seconds > 10**6  # since 1970


def test_a_result_of_an_earlier_part_is_not_that_of_a_later_one(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run").ended().events(events.RunStarted(100, 200, 50, 4), logged(120, loss=0.125))
    found = overview(run.folder)
    assert (found.state.word, found.steps, found.measure) == ("lost", 120, Measure("training accuracy", 0.75))


def test_a_folder_with_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event": "sta')
    found = overview(tmp_path)
    assert (found.state.word, found.steps, found.measure, found.workers) == ("lost", None, None, None)
    assert found.problems == ("config.yaml is missing.", "env.json is missing.")


def test_runs_are_found_below_folders_and_the_newest_is_first(tmp_path: Path) -> None:
    for number, name in enumerate(["old", "sweep/a", "sweep/b", ".hidden", "x/y/z/too-deep"]):
        run = FakeRun.begun(tmp_path / name).folder
        metrics = run / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"begun": 1000.0', f'"begun": {1000.0 + number}'))
    FakeRun.begun(tmp_path / "old" / "inside")
    (tmp_path / "link").symlink_to(tmp_path)
    assert [one.name for one in overviews([tmp_path])] == ["b", "a", "old"]
    assert [one.name for one in overviews([tmp_path / "sweep", tmp_path / "old"])] == ["b", "a", "old"]
    assert [one.name for one in overviews([tmp_path / "old", tmp_path / "old"])] == ["old"]
    os.mkdir(tmp_path / "empty")
    assert overviews([tmp_path / "empty"]) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        require_folders([tmp_path, tmp_path / "none"])


def test_the_time_between_an_end_and_its_continuation_is_not_the_run_s(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run").ended(goodput={"seconds": {"total": 99.0}})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "resumed", "step": 100, "begun": 500000.0, "time": 500001.0}\n')
        file.write('{"split": "train", "step": 120, "loss": 1.0, "samples": 1, "time": 500007.0}\n')
    found = overview(run.folder)
    assert (found.state.word, found.seconds) == ("lost", 106.0)
    with (run.folder / "metrics.jsonl").open("a") as file:  # and again, after it was killed
        file.write('{"event": "resumed", "step": 110, "begun": 500010.0, "time": 500011.0}\n')
    assert overview(run.folder).seconds == 110.0
