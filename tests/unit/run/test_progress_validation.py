"""What people see of the best validation and of an early stop while a run goes on, and in the closing table."""

from __future__ import annotations

import io
import math
from typing import Any, Literal

import pytest

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.engine import events
from hvdtrain.engine.events import StoppedEarly
from hvdtrain.measured import Seconds
from hvdtrain.run.ending import print_table
from hvdtrain.run.sinks.progress import Bar, Lines
from hvdtrain.run.sinks.terminal import Terminal, table_columns

VALUES = {"accuracy": 0.75, "loss": 0.5, "top5": 0.875}
STOPPED = StoppedEarly(epoch=4, step=20, metric="accuracy", patience=3, min_delta=0.0)


def evaluated(best: Best | None) -> events.Evaluated:
    return events.Evaluated(1, 8, 100, 0.5, VALUES, best)


def shown(kind: Literal["bar", "lines"], *told: events.Event) -> str:
    stream = io.StringIO()
    callback = Bar(stream, Terminal(stream, "single")) if kind == "bar" else Lines(stream)
    logged = events.Logged(
        epoch=1, step=8, lr=0.1, samples=10, samples_per_second=1000.0, values={"loss": 0.25}, rank_seconds=(Seconds(),)
    )
    for event in (events.RunStarted(0, 40, 4, 10), logged, *told, events.RunEnded(20, 100, True)):
        callback(event)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (Best("accuracy", 0.75, 8, 1), ", validation accuracy 0.7500 (best)"),
        (Best("accuracy", 0.8, 4, 0), ", validation accuracy 0.7500 (best 0.8000)"),
        (Best("top5", 0.9, 4, 0), ", validation top5 0.8750 (best 0.9000)"),
        (Best("loss", 0.4, 4, 0), ", validation accuracy 0.7500 (best loss 0.4000)"),
        (None, ", validation accuracy 0.7500"),
    ],
)
def test_a_bar_shows_the_last_and_the_best(best: Best | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert f"{words}]" in shown("bar", evaluated(best))


def test_lines_show_every_measure_and_why_it_stopped() -> None:
    ended = events.EpochEnded(1, 8)
    best, worse = Best("loss", 0.5, 8, 1), Best("loss", 0.4, 4, 0)
    text = shown("lines", evaluated(best), ended, STOPPED)
    assert "validation accuracy 0.7500  loss 0.5000  top5 0.8750 (best)\n" in text
    assert "stopped early after epoch 5: no better accuracy in 3 validations\n" in text
    assert "(best)" not in shown("lines", evaluated(worse), ended)


RESULT: dict[str, Any] = {
    "task": "digits",
    "framework": "torch",
    "status": "finished",
    "metrics": VALUES,
    "best": {"metric": "accuracy", "value": 0.8, "step": 4, "epoch": 0},
    "stopped_early": {"epoch": 4, "step": 20, "metric": "accuracy", "patience": 3, "min_delta": 0.25},
    "world_size": 2,
    "global_batch_size": 8,
    "samples_per_second": 10.0,
    "seconds": {"total": 1.0, "start": 0.5, "data": 0.1, "compute": 0.2, "allreduce": 0.1},
    "parameters": 10,
    "weights": {"sha256": "0" * 64},
}


def test_the_closing_table_says_both(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(RESULT, "out")
    text = capsys.readouterr().out
    assert "step 4, of epoch 1: accuracy 0.8000" in text
    assert "after epoch 5: no better accuracy in 3 validations (by more than 0.25)" in text
    assert "validation top5" in text
    assert "skipped" not in text
    print_table({**RESULT, "steps": 10, "goodput": {"skipped_updates": 4}}, "out")
    assert "4 of 10 updates, as gradients overflowed" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [40, 65, 100])
def test_no_line_of_the_closing_table_is_too_long_and_nothing_is_lost(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path is never broken, so that it can be copied: one that is too long for the table follows it."""
    for folder in ("out", "runs/" + "digits-torch-20261124-" * 6):
        print_table(RESULT, folder, f"`hvdtrain report {folder}` draws it", columns)
        text = capsys.readouterr().out
        lines = text.splitlines()
        below = [line for line in lines if len(line) > columns]
        assert below == (
            [] if folder == "out" else [f"run folder: {folder}", f"report: `hvdtrain report {folder}` draws it"]
        )
        assert lines[len(lines) - len(below) :] == below
        rows = [line for line in lines if line.startswith(("│", "|"))]
        assert len({len(row) for row in rows}) == 1
        assert "\x1b" not in text
        assert text.count(f"hvdtrain report {folder}`") == 1
        assert "0.8000" in text


@pytest.mark.parametrize(
    ("launcher", "own", "ancestor", "columns"),
    [
        ("single", 80, 0, 79),
        ("single", 200, 0, 100),
        ("single", 0, 60, 100),
        ("hvdtrain launch", 0, 80, 79),
        ("horovodrun", 0, 80, 63),
        ("mpirun", 0, 80, 63),
        ("mpirun", 0, 0, 100),
        ("slurm", 20, 0, 40),
    ],
)
def test_a_table_fits_the_terminal_behind_the_launchers_tag(
    launcher: str, own: int, ancestor: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = {7: own, "/dev/pts/1": ancestor}
    monkeypatch.setattr("hvdtrain.run.sinks.terminal._of_an_ancestor", lambda: "/dev/pts/1")
    monkeypatch.setattr("hvdtrain.run.sinks.terminal._width", lambda place: widths[place])
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: own > 0)
    monkeypatch.setattr(stream, "fileno", lambda: 7)
    assert table_columns(stream, launcher) == columns


def test_names_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of them is markup, and no end of a line breaks the table."""
    print_table(
        {**RESULT, "task": "a[/b]", "metrics": {"iou[car]": 0.5, "x[/b]": 0.25, "two\nlines": 0.75}}, "runs/[lr=1]"
    )
    text = capsys.readouterr().out
    for shown in ("a[/b] in torch", "iou[car]", "x[/b]", "two\\x0alines", "runs/[lr=1]"):
        assert shown in text, shown


def test_small_large_and_unknown_values_have_digits_that_say_something(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"small": 2.341e-6, "large": 1e30, "nan": math.nan, "null": None, "zero": 0.0}
    print_table({**RESULT, "metrics": values}, "out")
    words = capsys.readouterr().out.split()
    assert {"2.341e-06", "1e+30", "nan", "0.0000"} <= set(words)
