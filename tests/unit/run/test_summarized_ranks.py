"""From 64 ranks on, what is written of all ranks does not grow with their number; readers take both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rank_columns import summarize, summarized_seconds

from hvdtrain.algorithms.quantile_sketch import Quantiles
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunResult
from hvdtrain.files import open_lines, write_json
from hvdtrain.history.metrics import read_metrics
from hvdtrain.measured import METRICS, PARTS, Seconds, known_metrics, mean_seconds
from hvdtrain.rank_summary import RankSummary
from hvdtrain.report.page import read_runs
from hvdtrain.report.sections import time
from hvdtrain.run.result import Totals, result
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.run.sinks.progress import Lines
from hvdtrain.run.sinks.rank_log import text_of
from hvdtrain.topology import Topology

RANKS = 10_000
HOSTS = [f"a-rather-long-name-of-a-node-{rank // 8:06}.cluster.example.org" for rank in range(RANKS)]


def spread(seed: int, scale: float = 1.0) -> RankSummary:
    return summarize(np.random.default_rng(seed).random(RANKS) * scale, HOSTS)


def logged(step: int) -> events.Logged:
    """With every part and metric."""
    columns = {part.name: np.random.default_rng(number).random(RANKS) for number, part in enumerate(PARTS)}
    columns["data"][17] = 100.0
    columns["validation"][:] = 0.0  # which only validations have
    known: dict[str, Any] = {
        metric.name: spread(step, 2.0**40 if metric.kind == "bytes" else 1.0) if metric.of == "rank" else 3
        for metric in METRICS
    }
    own = Seconds(*(float(column[0]) for column in columns.values()))
    seconds = summarized_seconds(columns, own, HOSTS)
    values = {"loss": 0.5, "accuracy": 0.75}
    return events.Logged(
        epoch=0, step=step, values=values, samples=RANKS * 32, rank_seconds=(), summary=seconds, **known
    )


def written(folder: Path, *happened: events.Event) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    with open_lines(folder / "metrics.jsonl") as file:
        sink = MetricsFile(file, 0.0)
        for event in happened:
            sink(event)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_of_10000_ranks_has_at_most_4_kb_and_names_who_is_waited_for(tmp_path: Path) -> None:
    (line,) = written(tmp_path, logged(1))
    assert len((tmp_path / "metrics.jsonl").read_text()) <= 4096
    assert line["seconds"]["ranks"] == RANKS
    slowest = line["seconds"]["work"]["largest"][0]
    assert (slowest["rank"], slowest["host"]) == (17, HOSTS[17])
    assert line["memory"]["max"] == line["memory"]["largest"][0]["value"]


def test_a_result_of_10000_ranks_has_at_most_200_kb(tmp_path: Path) -> None:
    totals = Totals(RANKS)
    totals(logged(1))
    totals(events.Evaluated(0, 1, 9, 0.25, {"loss": 0.5}, summary=spread(3), own_seconds=0.25))
    totals.gather(SerialCommunicator(Topology.single()), HOSTS)
    steps = {name: {quantile: spread(5) for quantile in Quantiles.__slots__} for name in ("step", "data", "forward")}
    outcome = RunResult(1, 1, 9, True, {"loss": 0.5}, "ab" * 32, step_summaries=steps)
    about = {"framework": "torch", "task": "digits", "world_size": RANKS, "global_batch_size": 32, "tuned": {}}
    written_result = result(about, outcome, totals, (9.0, 2.0), 1000)
    write_json(tmp_path / "result.json", written_result)
    assert (tmp_path / "result.json").stat().st_size <= 200_000
    assert written_result["seconds"]["ranks"]["parts"]["validation"]["mean"] == 0.25
    assert written_result["step_seconds"]["ranks"]["step"]["p50"]["count"] == RANKS
    assert written_result["memory_bytes"]["resident"]["largest"]
    assert written_result["samples_per_second"] > 0


def test_readers_add_up_summaries_and_count_who_was_waited_for(tmp_path: Path) -> None:
    validation = events.Evaluated(0, 3, 9, 0.25, {"loss": 0.5}, summary=spread(4), own_seconds=0.25)
    written(tmp_path, events.RunStarted(0, 3, 3, 1), logged(1), logged(2), logged(3), validation)
    history = read_metrics(tmp_path)
    times = history.summaries
    assert (times.ranks, times.lines) == (RANKS, 3)
    assert times.parts["data"]["max"] == pytest.approx(300, abs=1)
    assert times.parts["validation"]["median"] == pytest.approx(spread(4).median, abs=1e-5)
    (first, *_) = times.most_often(4)
    assert (first.rank, first.host, first.lines, first.longest) == (17, HOSTS[17], 3, 3)
    assert history.ranks.sums == []
    assert history.goodput.result()["seconds"]["useful"] == pytest.approx(3 * 101, abs=6)
    assert "memory" in history.training
    assert "rank_seconds" not in history.validation


def test_the_page_shows_the_spread_and_the_ranks(tmp_path: Path) -> None:
    written(tmp_path, logged(1), logged(2))
    (tmp_path / "env.json").write_text("{}")
    (run,) = read_runs([tmp_path])
    assert run.workers == RANKS
    page = time.section(run)
    assert "Ranks with the longest work of their own" in page
    assert HOSTS[17] in page
    assert "10,000 ranks" in page


def test_damaged_summaries_are_left_out(tmp_path: Path) -> None:
    broken: list[Any] = [{}, {"ranks": "x", "parts": 3, "work": [], "step": None}, {"parts": {"data": [1]}}]
    broken.append({"ranks": 3, "parts": {"data": {"mean": "x", "max": -1}}, "work": {"largest": [3, {"rank": "a"}]}})
    lines = [json.dumps({"split": "train", "step": step, "seconds": each}) for step, each in enumerate(broken, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "env.json").write_text("{}")
    history = read_metrics(tmp_path)
    assert history.summaries.parts["data"]["max"] == 0
    assert time.section(read_runs([tmp_path])[0])


def test_tables_loggers_and_progress_show_means_and_the_most() -> None:
    import io

    event = logged(1)
    shown = {metric.name: metric.as_number(value) for metric, value in known_metrics(event)}
    assert shown["memory"] == spread(1, 2.0**40).max
    assert shown["device_use"] == spread(1).mean
    assert event.summary is not None
    assert mean_seconds(event)["data"] == event.summary.parts["data"].mean
    stream = io.StringIO()
    lines = Lines(stream)
    lines(events.RunStarted(0, 3, 3, 1))
    lines(event)
    assert "compute" in stream.getvalue()
    validation = events.Evaluated(0, 3, 9, 0.25, {"loss": 0.5}, own_seconds=0.5)
    assert (
        text_of(validation) == "evaluated: epoch 1, step 3, samples 9, seconds 0.25, values (loss 0.5), own seconds 0.5"
    )
