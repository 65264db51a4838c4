"""A row of the table of what is measured is all that a metric or a part needs to be written, read and shown."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from hvdtrain.adapters.adapter_protocol import Sums
from hvdtrain.cli.top.screen import COLUMNS
from hvdtrain.engine import events
from hvdtrain.files import open_lines
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.history.metrics import read_metrics
from hvdtrain.history.ranks import disjoint
from hvdtrain.measured import METRICS, PARTS, REST, Metric, Seconds, parts_of
from hvdtrain.report.page import read_runs
from hvdtrain.report.sections import curves, time
from hvdtrain.run.sinks.logger_sink import training_point
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.run.sinks.metrics_table import MetricsTable

IN_METER = {"memory"}  # the others are measured by adapters


def value_of(metric: Metric) -> Any:
    number = {"number": 0.25, "share": 0.5, "count": 3, "bytes": 2**20}[metric.kind]
    return (number, number) if metric.of == "rank" else number


def logged(step: int) -> events.Logged:
    known = {metric.name: value_of(metric) for metric in METRICS}
    seconds = Seconds(*[float(place) for place in range(1, len(PARTS) + 1)])
    about: Any = {"epoch": 0, "step": step, "values": {"loss": 0.5}, "samples": 8, "rank_seconds": (seconds,) * 2}
    return events.Logged(**about, **known)


def test_every_metric_and_part_is_in_all_files_and_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "env.json").write_text("{}")
    with open_lines(tmp_path / "metrics.jsonl") as file:
        table, sinks = MetricsTable(tmp_path / "metrics.csv"), MetricsFile(file, 0.0)
        for step in (1, 2):
            sinks(logged(step))
            table(logged(step))
        table.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    (row, _) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    names = {metric.name for metric in METRICS}
    assert names <= line.keys()
    assert names <= {name for name, cell in row.items() if cell} & training_point(logged(1), 0.0).values.keys()
    assert {part.name for part in PARTS} == line["seconds"][0].keys()
    assert all(row[f"seconds_{part.name}"] for part in PARTS)
    history = read_metrics(tmp_path)
    assert history.training.keys() - {"loss"} == {metric.name for metric in METRICS if metric.kind != "count"}
    page = curves.section(read_runs([tmp_path])) + (time.rank_chart(history.ranks) or "")
    assert [metric.title for metric in METRICS if metric.line and metric.title not in page] == []
    assert [part.title for part in PARTS if part.name != "compute" and part.title not in page] == []


def test_every_metric_is_measured_by_the_adapters_or_by_the_meter() -> None:
    reduced = {metric.name for metric in METRICS if metric.reduced}
    assert reduced - {field.name for field in fields(Sums)} == IN_METER


def test_what_is_live_is_a_key_of_a_heartbeat_and_a_column() -> None:
    live = [metric.live for metric in METRICS if metric.live is not None]
    assert {key for key, _ in live} <= {field.name for field in fields(Heartbeat)}
    assert {head for _, head in live} <= set(COLUMNS)


def test_parts_that_do_not_overlap_are_all_of_the_time() -> None:
    seconds = {part.name: 1.0 for part in PARTS} | {"compute": float(len(parts_of("inside")) + 2)}
    overlap = {"compute", *parts_of("beside")}
    assert disjoint(seconds) == {**{p.name: 1.0 for p in PARTS if p.name not in overlap}, REST: 2.0}
