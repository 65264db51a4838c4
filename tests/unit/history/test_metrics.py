"""What a run's metrics.jsonl says, of any version and through restarts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.metrics import MetricsHistory, read_metrics

Line = dict[str, Any]


def written(folder: Path, lines: list[Line], end: str = "") -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines) + end
    (folder / "metrics.jsonl").write_text(text)
    return folder


def trained(step: int, time: float = 0.0, **values: Any) -> Line:
    ranks = [{"data": 0.1, "compute": 0.5, "allreduce": 0.2, "checkpoint": 0.0}] * 2
    return {"split": "train", "epoch": 0, "step": step, **values, "samples": 8, "seconds": ranks, "time": time}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=6))
def test_of_a_step_that_was_trained_again_the_last_line_counts(
    shared: Path, starts: list[tuple[int, int, bool]]
) -> None:
    """Each start resumes at one of the steps that were reached, trains some, and may validate at its end."""
    lines: list[Line] = []
    training: dict[int, float] = {}
    validation: dict[int, float] = {}
    reached, value = 0, 0.0
    for back, steps, validates in starts:
        step = max(0, reached - back)
        lines.append({"event": "resumed" if step else "started", "step": step, "time": value})
        training = {s: v for s, v in training.items() if s <= step}
        validation = {s: v for s, v in validation.items() if s <= step}
        for number in range(step + 1, step + steps + 1):
            value += 1
            training[number] = value
            lines.append(trained(number, value, loss=value))
        reached = step + steps
        if validates:
            validation[reached] = value
            lines.append({"split": "validation", "step": reached, "loss": value, "seconds": 1.0})
    found = read_metrics(written(shared, lines))
    assert found.problems == ()
    assert _points(found.training) == sorted(training.items())
    assert _points(found.validation) == sorted(validation.items())
    assert found.last_step == reached
    assert found.samples == 8 * len(training)


def _points(curves: dict[str, Any]) -> list[tuple[int, float]]:
    return curves["loss"].points() if curves else []


def test_what_happened(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"event": "started", "step": 0, "begun": 1.0, "time": 2.0},
        trained(5, 3.0, loss=1.0, grad_norm=2.0, lr=0.1, samples_per_second=80.0, masked=1, skipped=2, note="?"),
        {"event": "checkpoint", "step": 5, "seconds": 0.5, "write_seconds": 2.0, "bytes": 1000, "time": 4.0},
        {"event": "checkpoint failed", "step": 6, "reason": "disk full", "time": 4.5},
        {"event": "failed", "step": 7, "error": "ValueError: no", "time": 5.0},
        {"event": "resumed", "step": 5, "begun": 8.0, "time": 9.0, "cause": "rank 1 was killed"},
        {"event": "ended", "step": 9, "time": 10.0},
        {"event": "resumed", "step": 9, "begun": 18.0, "time": 19.0},
        {"event": "stopped early", "step": 9, "metric": "loss", "time": 20.0},
        {"event": "something new", "step": 9, "time": 20.0},
    ]
    found = read_metrics(written(tmp_path, lines))
    assert [(h.kind, h.step, h.text, h.after_end) for h in found.events] == [
        ("start", 0, "", False),
        ("checkpoint failed", 6, "disk full", False),
        ("failure", 7, "ValueError: no", False),
        ("resume", 5, "rank 1 was killed", False),
        ("end", 9, "", False),
        ("resume", 9, "", True),
        ("early stop", 9, "", False),
    ]
    totals = found.checkpoints
    assert (totals.written, totals.failed, totals.longest, totals.largest) == (1, 1, 0.5, 1000)
    assert sorted(found.training) == ["grad_norm", "loss", "lr", "samples_per_second"]
    assert (found.samples, found.masked, found.skipped) == (8, 1, 2)
    assert found.speed.points() == [(1000, 80.0)]
    assert (found.began, found.ended) == (2.0, 20.0)
    assert found.goodput.result()["restarts"] == [
        {"step": 5, "lost_steps": 2, "seconds": 4.0, "cause": "rank 1 was killed"}
    ]


def test_an_older_version_and_broken_values_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"event": "started", "step": 0},  # without times
        {"split": "train", "step": 1, "loss": 2.0},
        {"split": "train", "step": 2, "loss": None, "accuracy": math.nan},
        {"split": "train", "step": 3, "loss": 1e300, "seconds": "much"},
        {"split": "train", "step": "four", "loss": 4.0},
        {"split": "train", "step": -5, "loss": 4.0},
        {"split": "train", "step": 6, "loss": True, "seconds": [1, {"data": -1, "compute": None, "x": 1.5}]},
        {"split": ["train"], "step": 7},
        {"event": {"a": 1}, "step": 8},
        {"event": "checkpoint", "step": 8, "path": "step_8"},
        {},
    ]
    found = read_metrics(written(tmp_path, lines, end='{"split": "trai'))
    assert found.training["loss"].points() == [(1, 2.0)]
    missed = found.training["loss"].missed
    assert missed is not None
    assert (missed.first, missed.last, missed.count) == (2, 3, 2)
    assert not found.training["accuracy"]
    assert found.ranks.sums == [{}, {"x": 1.5}]
    assert found.checkpoints.written == 1
    assert [problem[:20] for problem in found.problems] == ["The last line of met"]


@pytest.mark.parametrize("content", [None, b"", b"no JSON\n", b"\x00" * 100])
def test_where_there_is_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    found = read_metrics(tmp_path)
    assert len(found.problems) == 1
    assert (found.training, found.validation, found.lines) == ({}, {}, 0)


def test_a_long_run_with_many_names_stays_small() -> None:
    history = MetricsHistory()
    for step in range(3000):
        history.add(trained(step, step, **{f"m{step % 200}": 1.0, "x" * 500: 2.0}), counts=True)
        history.add({"event": "failed", "step": step, "error": "x" * 10_000}, counts=True)
    assert len(history.training) == 64
    assert max(len(curve.points()) for curve in history.training.values()) <= 1024
    kept = list(history.events)
    assert len(kept) + history.events.left_out == 3000
    assert (kept[0].step, kept[-1].step, len(kept)) == (0, 2999, 1000)
    assert max(len(happening.text) for happening in kept) == 2000


def test_the_mean_speed_weighs_each_line_by_its_samples(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"split": "train", "step": 1, "loss": 1.0, "samples": 10, "samples_per_second": 1000.0, "time": 1.0},
        {"split": "train", "step": 50, "loss": 1.0, "samples": 990, "samples_per_second": 100.0, "time": 2.0},
    ]
    assert read_metrics(written(tmp_path, lines)).mean_speed == pytest.approx(1000 / (0.01 + 9.9))
    assert read_metrics(written(tmp_path, [{"split": "train", "step": 1, "loss": 1.0}])).mean_speed is None
