"""Several ranks keep one best checkpoint, stop early together, and refuse a metric that the task does not measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.digits_runs import digits_pattern
from support.ranks import run_ranks
from support.runs import lines_of, result_of

DEADLINE_S = 180
QUICK = ["--global-batch-size", "256", "--task-args.width", "8", "--epochs", "9", "--keep-checkpoints", "1"]  # 6 steps
SETS = ["--data.validation", f"first={digits_pattern('validation-00000*')}"]
SETS += ["--data.validation", f"others={digits_pattern('validation-0000[!0]*')}"]
SETS += ["--data.validation", f"whole={digits_pattern('validation-*')}"]
EARLY = ["--early-stopping-patience", "2", "--early-stopping-min-delta", "1"]  # no accuracy improves by so much


def train(size: int, launcher: str, cwd: Path, *flags: str) -> Any:
    return run_ranks(["python", "-m", "hvdtrain", *QUICK, *flags], size, launcher, DEADLINE_S, cwd=cwd)


@pytest.mark.parametrize(
    ("framework", "launcher", "size"), [("torch", "mpirun", 3), ("tensorflow", "horovodrun-gloo", 2)]
)
def test_ranks_stop_early_together(framework: str, launcher: str, size: int, tmp_path: Path) -> None:
    flags = ["--framework", framework, "--best-metric", "whole/accuracy", *SETS, *EARLY, "--output-dir", "out"]
    finished = train(size, launcher, tmp_path, *flags)
    assert finished.returncode == 0, finished.tail()
    out = tmp_path / "out"
    result = result_of(out)
    assert (result["status"], result["epochs"], result["steps"]) == ("finished", 3, 18)
    assert result["stopped_early"]["epoch"] == 2
    lines = lines_of(out)
    validations = [line for line in lines if line.get("split") == "validation"]
    for line in validations:  # of two sets that together are the third one
        assert line["sets"] == {"first": 90, "others": 269, "whole": 359}
        for measure in ("loss", "accuracy"):
            mean = sum(line["sets"][name] * line[f"{name}/{measure}"] for name in ("first", "others")) / 359
            assert line[f"whole/{measure}"] == pytest.approx(mean, rel=1e-6)
    assert result["metrics"] == {name: validations[-1][name] for name in result["metrics"]}
    accuracy = {line["step"]: line["whole/accuracy"] for line in validations}
    best = result["best"]
    assert best["value"] == max(accuracy.values())
    assert best["step"] == min(step for step, value in accuracy.items() if value == best["value"])
    assert (out / "checkpoints" / "best").read_text() == f"step_{best['step']:08d}\n"
    kept = {path.name for path in (out / "checkpoints").glob("step_*")}
    assert kept == {f"step_{best['step']:08d}", "step_00000018"}
    for log in (out / "logs").iterdir():
        assert "stopped early: epoch 3, step 18, metric whole/accuracy, patience 2" in log.read_text(), log
    assert "stopped early after epoch 3: no better whole/accuracy in 2 validations (by more than 1)" in finished.stderr


def test_a_metric_that_is_not_measured_is_refused_once(tmp_path: Path) -> None:
    finished = train(2, "mpirun", tmp_path, "--best-metric", "top5", "--output-dir", "out")
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("The task does not measure 'top5'.") == 1, finished.tail()
    assert "Valid: accuracy, loss." in finished.stderr, finished.tail()
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
