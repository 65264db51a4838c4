"""metrics.csv has every value once, whatever is measured, and whenever a run is killed and resumed."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.engine import events
from hvdtrain.measured import Seconds
from hvdtrain.run.sinks.metrics_table import COLUMNS, MetricsTable, column_of

NAMES = st.text(max_size=6) | st.sampled_from([*COLUMNS, "measure:lr", "a,b", 'a"b', "a\nb", "a\\nb", "loss"])
MEASURES = st.dictionaries(NAMES, st.floats(), max_size=4)
Measures = dict[str, float]


def logged(step: int, values: Measures) -> events.Logged:
    ranks = (Seconds(1.0, 2.0, 3.0, 4.0), Seconds(3.0, 2.0, 1.0, 0.0))
    return events.Logged(
        epoch=1,
        step=step,
        lr=0.25,
        samples=10,
        samples_per_second=100.0,
        values=values,
        rank_seconds=ranks,
        memory=(5, 9),
        grad_norm=1.5,
        grad_norm_peak=2.5,
    )


def evaluated(step: int, values: Measures) -> events.Evaluated:
    return events.Evaluated(1, step, 7, 0.5, values, Best("loss", 0.5, step, 1))


def rows_of(path: Path) -> list[dict[str, str]]:
    """All rows by column; each has as many cells as the header."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert len(set(header)) == len(header)
    assert {len(row) for row in rows} <= {len(header)}
    return [dict(zip(header, row, strict=True)) for row in rows]


@given(
    parts=st.lists(
        st.tuples(st.lists(st.tuples(st.booleans(), MEASURES), max_size=4), st.sampled_from([b"", b"1.5,tr", b'"'])),
        min_size=1,
        max_size=3,
    )
)
@example(parts=[([(True, {"lr": 1.0, "measure:lr": 2.0, "a\nb": 3.0, "a\\nb": 4.0})], b"")])
@settings(deadline=None, max_examples=25)
def test_every_value_is_there_once_and_no_other(parts: list[tuple[list[tuple[bool, Measures]], bytes]]) -> None:
    """Args: `parts`: of the run, each a start: what it measured, in training or not, and the half row that it left."""
    with tempfile.TemporaryDirectory() as folder:
        path, told, header = Path(folder) / "metrics.csv", [], ""
        for measured, torn in parts:
            table = MetricsTable(path)
            for training, values in measured:
                told.append(("train" if training else "validation", values))
                table(events.StepEnded(0, len(told)))
                table(logged(len(told), values) if training else evaluated(len(told), values))
                before, header = header, path.read_text(encoding="utf-8").partition("\n")[0]
                assert header.startswith(before)
            table.close()
            if path.exists():
                with path.open("ab") as file:
                    file.write(torn)
        if path.exists():
            table = MetricsTable(path)
            told.append(("train", {}))
            table(logged(len(told), {}))
            table.close()
        rows = rows_of(path) if told else []
    assert [(row["split"], row["step"]) for row in rows] == [(split, str(i)) for i, (split, _) in enumerate(told, 1)]
    for row, (_, values) in zip(rows, told, strict=True):
        cells = {name: cell for name, cell in row.items() if name not in COLUMNS and cell}
        assert cells.keys() == {column_of(name) for name in values}
        for name, value in values.items():
            cell = float(cells[column_of(name)])
            assert cell == value or (math.isnan(cell) and math.isnan(value))


def test_what_stands_in_a_row_beside_measures(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv")
    table(logged(3, {"loss": 0.5}))
    table(evaluated(3, {"loss": 0.25}))
    table.close()
    training, validation = rows_of(tmp_path / "metrics.csv")
    shown = {name: cell for name, cell in training.items() if cell and name != "time"}
    assert json.dumps(shown) == json.dumps(
        {
            "split": "train",
            "epoch": "1",
            "step": "3",
            "samples": "10",
            "lr": "0.25",
            "samples_per_second": "100.0",
            "grad_norm": "1.5",
            "grad_norm_peak": "2.5",
            "memory": "9",
            **{
                "seconds_data": "2.0",
                "seconds_compute": "2.0",
                "seconds_allreduce": "2.0",
                "seconds_checkpoint": "2.0",
            },
            "loss": "0.5",
        }
    )
    shown = {name: cell for name, cell in validation.items() if cell and name != "time"}
    assert shown == {
        **{"split": "validation", "epoch": "1", "step": "3", "samples": "7", "best": "1"},
        **{"seconds_validation": "0.5", "loss": "0.25"},
    }


def test_a_table_that_cannot_be_widened_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path)
    table(logged(1, {"loss": 0.5}))
    before = path.read_bytes()
    monkeypatch.setattr("hvdtrain.run.sinks.metrics_table._writer", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        table(logged(2, {"loss": 0.5, "accuracy": 1.0}))
    table.close()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
