"""Evaluation equals the validation of training, and predictions are the same, with any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits_runs import digits_pattern
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import lines_of

DEADLINE_S = 180
RECORDS = 359
SCRIPT = str(Path(__file__).parent / "workers" / "stopped_prediction.py")
HVDTRAIN = ["python", "-m", "hvdtrain"]
WHOLE = f"whole={digits_pattern('validation-*')}"
PREDICT = [*HVDTRAIN, "predict", "out", "--set", WHOLE]


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with two sets of validation: a quarter of the records, and all of them in 45 steps."""
    folder = tmp_path_factory.mktemp(request.param)
    train = ["--framework", request.param, "--task-args.width", "8", "--global-batch-size", "8", "--epochs", "1"]
    train += ["--data.validation", f"few={digits_pattern('validation-00000*')}", "--data.validation", WHOLE]
    finished = run_command([*HVDTRAIN, *train, "--output-dir", "out"], DEADLINE_S, cwd=folder)
    assert finished.returncode == 0, finished.tail()
    return folder


def test_two_workers_measure_what_training_has_validated(run: Path) -> None:
    evaluate = [*HVDTRAIN, "evaluate", "out", "--output", "two.json"]
    finished = run_ranks(evaluate, 2, "horovodrun-gloo", DEADLINE_S, cwd=run)
    assert finished.returncode == 0, finished.tail()
    sets = json.loads((run / "two.json").read_text())["sets"]
    validated = next(line for line in lines_of(run / "out") if line.get("split") == "validation")
    assert (
        {name: found["records"] for name, found in sets.items()} == validated["sets"] == {"few": 90, "whole": RECORDS}
    )
    for name, found in sets.items():
        assert found["measures"] == pytest.approx(
            {measure: validated[f"{name}/{measure}"] for measure in ("loss", "accuracy")}, rel=1e-6
        )
        counts = np.array(found["confusion"])
        assert counts.trace() / counts.sum() == pytest.approx(found["measures"]["accuracy"])
        assert sum(values["support"] for values in found["classes"]) == found["records"]
    assert "Confusion matrix of whole" in (run / "two.html").read_text()
    again = run_command([*HVDTRAIN, "evaluate", "out", "--output", "two.json"], DEADLINE_S, cwd=run)
    assert again.returncode == 2
    assert "two.json is there already" in again.stderr


def test_predictions_that_were_stopped_go_on_with_another_number_of_workers(run: Path) -> None:
    whole = run_command([*PREDICT, "--output", "whole.npz"], DEADLINE_S, cwd=run)
    assert whole.returncode == 0, whole.tail()
    stopped = run_command(["python", SCRIPT, "out", "on.npz", WHOLE], DEADLINE_S, cwd=run)
    assert stopped.returncode == 0, stopped.tail()
    assert (run / "on.npz.parts" / "part-000000.npz").exists()
    assert not (run / "on.npz").exists()
    assert not (run / "on.npz.parts" / "part-000001.npz").exists()
    begun = run_ranks([*PREDICT, "--output", "on.npz"], 2, "horovodrun-gloo", DEADLINE_S, cwd=run)
    assert begun.returncode == 0, begun.tail()
    expected, found = _arrays(run / "whole.npz"), _arrays(run / "on.npz")
    assert found.keys() == expected.keys() == {"id", "file", "offset", "label", "probability"}
    assert found["id"].tolist() == list(range(RECORDS))
    for name in ("file", "offset", "label"):
        assert (found[name] == expected[name]).all(), name
    np.testing.assert_allclose(found["probability"], expected["probability"], atol=1e-6)
    assert not (run / "on.npz.parts").exists()


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)
