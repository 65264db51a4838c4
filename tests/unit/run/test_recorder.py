"""What a run writes down as it goes."""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import hvdtrain.run.sinks
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine import events
from hvdtrain.files import open_lines, write_atomically, write_json
from hvdtrain.measured import Seconds
from hvdtrain.run.ending import print_table
from hvdtrain.run.result import Totals
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.logger_sink import LoggerSink
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.run.sinks.metrics_table import MetricsTable
from hvdtrain.run.sinks.progress import Lines
from hvdtrain.run.sinks.rank_log import RankLog
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import SINKS, Guarded, open_sinks
from hvdtrain.slowness.causes import Straggler
from hvdtrain.topology import Topology


def logged(step: int, loss: float, seconds: tuple[Seconds, ...] = (Seconds(),), samples: int = 10) -> events.Logged:
    return events.Logged(
        epoch=0,
        step=step,
        lr=0.1,
        samples=samples,
        samples_per_second=100.0,
        values={"loss": loss},
        rank_seconds=seconds,
        memory=(2**20, 2**21),
    )


SLOW = Straggler(1, "node2", 0.7, 3.0, "cpu throttled", {"throttled": 0.75}, 10, 200)


def test_the_time_of_validations_adds_up() -> None:
    totals = Totals(1)
    for step in (1, 2, 3, 4):
        totals(events.Evaluated(step, step, 9, 0.25, {"loss": 0.5}, None, (0.5,)))
    assert totals.validation_seconds == 1.0
    assert totals.rank_seconds == [Seconds(validation=2.0)]


def test_totals_are_sums_and_the_speed_is_the_slowest_ranks() -> None:
    totals = Totals(2)
    for step in (1, 2):
        totals(logged(step, 1.0, (Seconds(0.5, 1.0, 0.5), Seconds(1.0, 1.0, 2.0, checkpoint=7.0))))
    assert totals.rank_seconds == [Seconds(1.0, 2.0, 1.0), Seconds(2.0, 2.0, 4.0, 14.0)]
    assert totals.samples_per_second == 20 / 8
    assert Totals(1).samples_per_second == 0.0


def test_the_closing_table_names_who_was_slow_and_the_parts_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    link = replace(SLOW, rank=None, host="", slower_by=0.0, cause="slow link")
    seconds = {"data": 1.0, "compute": 2.0, "allreduce": 1.0, "forward": 0.5, "backward": 1.0, "optimizer": 0.25}
    result: dict[str, Any] = {
        **{"task": "digits", "framework": "torch", "status": "finished", "metrics": {}, "best": None},
        **{"stopped_early": None, "world_size": 2, "global_batch_size": 8, "samples_per_second": 10.0},
        **{"seconds": {"total": 5.0, "start": 0.5, **seconds}, "parameters": 10, "weights": {"sha256": "0" * 64}},
        "stragglers": [asdict(SLOW), asdict(link)],
    }
    print_table(result, "out")
    printed = " ".join(word for word in capsys.readouterr().out.split() if word != "│")
    assert "data 25%, compute 50% (forward 12%, backward 25%, optimizer 6%), allreduce 25%" in printed
    assert "rank 1 on node2: cpu throttled, slower by 300%; others waited 70% of their time" in printed
    assert "the network: slow link; others waited 70% of their time" in printed


def test_only_the_first_step_of_all_gives_the_first_loss() -> None:
    totals = Totals(1)
    totals(logged(5, 2.0))
    assert totals.first_loss is None
    totals(logged(1, 3.0))
    assert totals.first_loss == 3.0


def test_lines_after_the_removal_of_the_file_are_in_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with ExitStack() as stack:
        metrics = MetricsFile(
            stack.enter_context(open_lines(path)), 99.0, lambda: stack.enter_context(open_lines(path))
        )
        metrics(logged(1, 0.5))
        path.unlink()
        for step in (2, 3):
            metrics(logged(step, 0.5))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 3]


def test_every_line_of_metrics_is_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open_lines(path) as file:
        metrics = MetricsFile(file, begun=99.0)
        for event in (
            events.RunStarted(0, 2, 2, 1),
            events.StepEnded(0, 1),
            logged(1, 0.5, (Seconds(0.25, 1.0, forward=0.5),)),
            events.StragglerFound(1, SLOW),
            events.CheckpointStarted(1),
            events.CheckpointDurable(1, Path("a/step_00000001"), 0.1),
            events.RunEnded(1, 10, False),
            events.RunFailed(1, RuntimeError("broken")),
        ):
            metrics(event)
            assert all(json.loads(line)["time"] for line in path.read_text().splitlines())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line.get("event", line.get("split")) for line in lines]
    assert kinds == [
        "started",
        "train",
        "straggler",
        "checkpoint",
        "ended",
        "failed",
    ]
    assert lines[-1]["error"] == "RuntimeError: broken"
    assert lines[1]["seconds"] == [{"data": 0.25, "compute": 1.0, "allreduce": 0.0, "checkpoint": 0.0, "forward": 0.5}]
    assert (lines[2]["rank"], lines[2]["cause"], lines[2]["facts"]) == (1, "cpu throttled", {"throttled": 0.75})
    assert lines[3]["path"] == "step_00000001"
    assert lines[0]["begun"] == 99.0
    assert lines[1]["memory"] == {"max": 2**21, "ranks": [2**20, 2**21]}
    assert "device_memory" not in lines[1]


@pytest.mark.parametrize("torn", [b"", b'{"step": 2', b"\xff"])
def test_a_line_that_a_killed_run_left_unfinished_is_no_more(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + torn)
    with open_lines(path) as file:
        file.write('{"step": 2}\n')
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_the_end_of_a_large_file_is_found_without_reading_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = b"".join(b"%d\n" % number for number in range(40_000))
    path.write_bytes(lines + b"x" * 200_000)
    open_lines(path).close()
    assert path.read_bytes() == lines


def test_a_file_that_is_only_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"st')
    open_lines(path).close()
    assert path.read_bytes() == b""


def test_atomic_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    write_json(tmp_path / "a.json", {"x": [2, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [2, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_atomically(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_no_file_is_neither_replaced_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for write in (lambda: write_json(tmp_path / "fifo", {}), lambda: open_lines(tmp_path / "fifo")):
        with pytest.raises(FileExistsError, match="FIFO"):
            write()
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)


def test_a_link_keeps_leading_to_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_json(tmp_path / "link", [1])
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target").read_text()) == [1]


def test_a_rank_log_has_the_first_metrics_and_the_last_before_any_other_event(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "hvdtrain.run")
    monkeypatch.setattr(logging.getLogger("hvdtrain"), "propagate", True)
    log = RankLog(0)
    for step in range(1, 6):
        log(events.StepEnded(0, step))
        log(logged(step, 0.5))
    log(events.EpochEnded(0, 5))
    log(events.EpochStarted(1))
    assert [record.getMessage().partition(": loss")[0] for record in caplog.records] == [
        "epoch 1, step 1",
        "epoch 1, step 5",
        "epoch ended: epoch 1, step 5",
        "epoch started: epoch 2",
    ]


@pytest.mark.parametrize(
    ("rank", "opened"), [(0, [RankLog, MetricsFile, MetricsTable, Lines, LoggerSink, LoggerSink]), (1, [RankLog])]
)
def test_every_registered_sink_is_opened_and_closed(tmp_path: Path, rank: int, opened: list[type]) -> None:
    """W&B and MLflow are imported when the run is prepared, and used when it starts."""
    topology = replace(Topology.single(), rank=rank, size=2)
    config = TrainConfig(progress="lines", loggers="wandb,mlflow")
    context = SinkContext(config, RunFolder(tmp_path, 1), topology)
    with ExitStack() as stack:
        sinks = list(open_sinks(context, stack))
        assert [type(sink.sink if isinstance(sink, Guarded) else sink) for sink in sinks] == opened
        files = [sink._file for sink in sinks if isinstance(sink, MetricsFile)]
    assert all(file.closed for file in files)
    assert {f"{name.__module__}" for name in SINKS} == {
        f"hvdtrain.run.sinks.{path.stem}"
        for path in Path(hvdtrain.run.sinks.__file__).parent.glob("*.py")
        if "def open_sink(" in path.read_text()
    }
