"""A bar fits its terminal, the important things first; lines come often enough, and not too often."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
from pathlib import Path

import pytest

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.engine import events
from hvdtrain.measured import Seconds
from hvdtrain.run.sinks.progress import Bar, Lines
from hvdtrain.run.sinks.terminal import Terminal

VALIDATION = {"accuracy": 0.9722, "loss": 0.0666}
STEPS = 360
SHARES = "data 2% compute 80% allreduce 18%"


def logged(step: int) -> events.Logged:
    return events.Logged(
        epoch=2,
        step=step,
        lr=0.1,
        samples=10,
        samples_per_second=12345.0,
        values={"accuracy": 0.98, "loss": 0.0512},
        rank_seconds=(Seconds(0.5, 8.0, 1.0, 99.0), Seconds(0.0, 8.0, 2.5)),
    )


def last_drawn(columns: int, monkeypatch: pytest.MonkeyPatch, launcher: str = "single") -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    bar = Bar(stream, Terminal(stream, launcher))
    evaluated = events.Evaluated(1, 60, 100, 0.5, VALIDATION, Best("accuracy", 0.98, 30, 0))
    for event in (events.RunStarted(75, STEPS, 30, 12), logged(75), evaluated, events.RunEnded(75, 100, False)):
        bar(event)
    drawn = [piece for piece in re.split("[\r\n]", stream.getvalue()) if piece]
    assert max(map(len, drawn)) < columns, drawn
    return drawn[-1]


@pytest.mark.parametrize(
    ("columns", "there", "missing"),
    [
        (30, ("epoch 3/12",), ("|",)),
        (60, ("75/360", "left"), ("samples/s",)),
        (80, ("75/360", "left", "accuracy 0.9722]"), ("samples/s",)),
        (100, ("75/360", "left", "12,345 samples/s", "accuracy 0.9722]"), ("best",)),
        (115, ("75/360", "12,345 samples/s", "accuracy 0.9722 (best 0.9800)]"), ("left", "data")),
        (150, (f"12,345 samples/s, {SHARES}, validation accuracy 0.9722 (best 0.9800)]",), ("accuracy 0.9800 |",)),
        (
            200,
            ("loss 0.0512  accuracy 0.9800 |", f"samples/s, {SHARES}, validation accuracy 0.9722 (best 0.9800)]"),
            ("left",),
        ),
    ],
)
def test_a_bar_fits_and_what_matters_most_stays_longest(
    columns: int, there: tuple[str, ...], missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = last_drawn(columns, monkeypatch)
    assert all(word in drawn for word in there), drawn
    assert not any(word in drawn for word in missing), drawn
    if 60 <= columns < 200:
        assert "epoch 3/12  loss 0.0512 |" in drawn
        assert len(drawn.split("|")[1]) >= 10, drawn


def test_there_is_room_for_the_tag_of_horovodrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(last_drawn(60, monkeypatch, "horovodrun")) + len("[0]<stderr>:") < 60


def test_a_bar_follows_its_terminal_when_that_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdtrain.run.sinks.progress._REDRAWN_SECONDS", 0.0)
    far, near = os.openpty()
    with open(near, "w") as stream:
        bar = Bar(stream, Terminal(stream, "single"))
        bar(events.RunStarted(0, STEPS, 30, 12))
        bar(logged(1))
        os.read(far, 65536)
        for columns in (70, 140):
            termios.tcsetwinsize(near, (24, columns))
            bar(events.StepEnded(0, 1))
            assert len(os.read(far, 65536).decode().strip()) == columns - 1
        bar.close()
    os.close(far)


def test_lines_of_a_long_epoch_come_at_once_then_rarer_and_say_how_long_it_takes() -> None:
    now, stream = 0.0, io.StringIO()
    lines = Lines(stream, clock=lambda: now)
    lines(events.RunStarted(0, 36_000, 36_000, 1))
    seconds = []
    for step in range(1, 3601):
        now += 1.0
        before = stream.tell()
        lines(events.StepEnded(0, step))
        if step == 1 or step % 10 == 0:
            lines(logged(step))
        if stream.tell() > before:
            seconds.append(now)
    waits = [b - a for a, b in zip(seconds, seconds[1:], strict=False)]
    assert seconds[:4] == [1.0, 3.0, 5.0, 7.0]
    assert waits == sorted(waits)
    assert max(waits) == 30.0
    told = f"train accuracy 0.9800  loss 0.0512 (step 1)  12345 samples/s  9:59:57 left  {SHARES}"
    assert f"epoch 1/1 step 3/36000  {told}\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("step", "total", "max_steps", "said"),
    [
        (12, 5, None, "12 steps are trained already; nothing is left to train of --epochs 1 (5 steps)"),
        (5, 5, None, "5 steps are trained already; nothing is left to train of --epochs 1 (5 steps)"),
        (12, 30, 5, "12 steps are trained already; nothing is left to train of --max-steps 5"),
        (12, 5, 20, "12 steps are trained already; nothing is left to train of --epochs 1 (5 steps)"),
        (4, 5, None, "training from step 4 to 5, 1 epochs"),
        (4, 30, 5, "training from step 4 to 30, 1 epochs"),
    ],
)
def test_what_is_trained_already_is_not_said_to_be_trained(
    step: int, total: int, max_steps: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = events.RunStarted(step, total, 5, 1)
    lines, drawn = io.StringIO(), io.StringIO()
    Lines(lines, max_steps=max_steps)(started)
    assert lines.getvalue() == f"{said}\n"
    monkeypatch.setenv("COLUMNS", "80")
    bar = Bar(drawn, Terminal(drawn, "single"), max_steps)
    bar(started)
    bar(events.RunEnded(step, 100, True))
    assert ("nothing left to train" in drawn.getvalue()) is said.startswith(f"{step} steps")
    assert f"{step}/{max(step, total)}" in drawn.getvalue()


def test_sagemaker_finds_the_metrics_in_lines_by_the_expressions_of_its_page() -> None:
    """SageMaker takes what stands in the parentheses, of the first match in each line."""
    stream = io.StringIO()
    lines = Lines(stream)
    evaluated = events.Evaluated(2, 30, 100, 0.5, VALIDATION, None)
    for event in (events.RunStarted(0, STEPS, 30, 12), logged(30), evaluated, events.EpochEnded(2, 30)):
        lines(event)
    of_step, of_epoch = stream.getvalue().splitlines()[1:]
    page = (Path(__file__).parents[3] / "docs" / "sagemaker.md").read_text()
    expressions = dict(re.findall(r"--metric '([\w:]+)=([^']+)'", page))
    assert expressions.keys() == {"train:loss", "train:samples_per_second", "validation:accuracy", "validation:loss"}
    values = {"train:loss": "0.0512", "train:samples_per_second": "12345"}
    both = {**values, "validation:accuracy": "0.9722", "validation:loss": "0.0666"}
    for line, expected in ((of_step, values), (of_epoch, both)):
        found = {name: re.search(expression, line) for name, expression in expressions.items()}
        assert {name: match[1] for name, match in found.items() if match} == expected, line


def test_a_terminal_without_a_size_gets_a_bar() -> None:
    ours, theirs = pty.openpty()  # 0 rows and columns, as `docker exec -t` and expect leave it
    with open(theirs, "w") as stream, open(ours, "rb", buffering=0) as shown:
        bar = Bar(stream, Terminal(stream, "single"))
        for event in (events.RunStarted(75, STEPS, 30, 12), logged(75), events.RunEnded(75, 100, False)):
            bar(event)
        drawn = b""
        while b"loss 0.0512" not in drawn:  # a terminal gives each redrawing for itself
            drawn += shown.read(4096)


def test_an_own_pipe_is_no_terminal() -> None:
    assert not Terminal(io.StringIO(), "single").redraws
    assert not Terminal(io.StringIO(), "mpirun").redraws
