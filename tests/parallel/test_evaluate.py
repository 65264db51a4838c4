"""Evaluation equals the validation of training, and predictions are the same, with any number of workers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from support.digits_runs import digits_pattern
from support.jobs import python_path
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import lines_of

DEADLINE_S = 180
LOST_S = 45.0  # from the death of one rank to the end of every process; five on a quiet machine
RECORDS = 359
WORKERS = Path(__file__).parent / "workers"
TASKS = {"torch": "train_torch_tasks:Faulty", "tensorflow": "train_keras_tasks:Faulty"}
ENV = python_path(WORKERS)
HVDTRAIN = ["python", "-m", "hvdtrain"]
WHOLE = f"whole={digits_pattern('validation-*')}"
PREDICT = [*HVDTRAIN, "predict", "out", "--set", WHOLE, "--output", "on.npz"]


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with two sets of validation: a quarter of the records, and all of them in 45 steps."""
    folder = tmp_path_factory.mktemp(request.param)
    train = ["--task", TASKS[request.param], "--task-args.width", "8", "--global-batch-size", "8", "--epochs", "1"]
    train += ["--data.validation", f"few={digits_pattern('validation-00000*')}", "--data.validation", WHOLE]
    finished = run_command([*HVDTRAIN, *train, "--output-dir", "out"], DEADLINE_S, ENV, folder)
    assert finished.returncode == 0, finished.tail()
    return folder


def test_two_workers_measure_what_training_has_validated(run: Path) -> None:
    evaluate = [*HVDTRAIN, "evaluate", "out", "--output", "two.json"]
    finished = run_ranks(evaluate, 2, "horovodrun-gloo", DEADLINE_S, ENV, run)
    assert finished.returncode == 0, finished.tail()
    sets = json.loads((run / "two.json").read_text())["sets"]
    validated = next(line for line in lines_of(run / "out") if line.get("split") == "validation")
    assert (
        {name: found["records"] for name, found in sets.items()} == validated["sets"] == {"few": 90, "whole": RECORDS}
    )
    for name, found in sets.items():
        assert found["as_in_training"] is True
        assert found["measures"] == pytest.approx(
            {measure: validated[f"{name}/{measure}"] for measure in ("loss", "accuracy")}, rel=1e-6
        )
        counts = np.array(found["confusion"])
        assert counts.trace() / counts.sum() == pytest.approx(found["measures"]["accuracy"])
        assert sum(values["support"] for values in found["classes"]) == found["records"]
    assert "Confusion matrix of whole" in (run / "two.html").read_text()


def test_predictions_go_on_after_a_stop_and_a_death_with_another_number_of_workers(run: Path) -> None:
    """The first part is made by one process, which is stopped; then one of two workers is killed; then two go on."""
    one = run_command(["python", str(WORKERS / "predictions_of_one.py"), "out", WHOLE], DEADLINE_S, ENV, run)
    assert one.returncode == 0, one.tail()
    require_killed(run, PREDICT)
    there = sorted(path.name for path in (run / "on.npz.parts").iterdir())
    assert there == [".lock", "part-000000.npz", "predictions.json"]
    assert not (run / "on.npz").exists()
    begun = run_ranks(PREDICT, 2, "horovodrun-gloo", DEADLINE_S, ENV, run)
    assert begun.returncode == 0, begun.tail()
    assert not (run / "on.npz.parts").exists()
    expected, found = _arrays(run / "whole.npz"), _arrays(run / "on.npz")
    assert found.keys() == expected.keys() == {"id", "file", "offset", "label", "probability"}
    assert found["id"].tolist() == list(range(RECORDS))
    for name in ("file", "offset", "label"):
        assert (found[name] == expected[name]).all(), name
    np.testing.assert_allclose(found["probability"], expected["probability"], atol=1e-6)
    require_same_in_all_formats(run, expected)


def test_an_evaluation_of_which_a_worker_dies_ends(run: Path) -> None:
    require_killed(run, [*HVDTRAIN, "evaluate", "out", "--set", "few", "--output", "killed.json"])
    assert not (run / "killed.json").exists()


def require_killed(run: Path, command: list[str]) -> None:
    """The other worker says why it ends: it has made its graphs by then, and horovodrun ends it after 5 s."""
    (run / "stamp").unlink(missing_ok=True)
    fault = {"place": "decode", "kind": "kill", "rank": 1, "call": 10, "stamp": str(run / "stamp")}
    slow = {"decode": [1, 0.02]}  # so that it is not far ahead of the steps
    faults = {"TRAIN_FAULT": json.dumps(fault), "TRAIN_SLOW": json.dumps(slow)}
    killed = run_ranks(command, 2, "horovodrun-gloo", DEADLINE_S, {**ENV, **faults}, run)
    assert killed.returncode != 0, killed.tail()
    assert time.monotonic() - float((run / "stamp").read_text()) < LOST_S
    assert "Another rank has ended or stalled" in killed.stderr, killed.tail()


def require_same_in_all_formats(run: Path, expected: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in (run / "whole.jsonl").read_text().splitlines()]
    columns = parquet.read_table(run / "whole.parquet").to_pydict()
    assert list(columns) == list(lines[0]) == list(expected)
    for name, array in expected.items():
        assert columns[name] == array.tolist(), name
        assert [line[name] for line in lines] == array.tolist(), name


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)
