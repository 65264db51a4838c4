"""W&B offline, MLflow in a folder, TensorBoard: each has a run once, and a resumed run goes on in it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import run, run_python
from support.event_files import events_of, shown_scalars
from support.numpy_training import Data, NumpyTask
from support.ranks import run_on_ranks

from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.prepare import prepare
from hvdtrain.run.sinks.mlflow_logger import Keys, key_of

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "loggers_here.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loggers")


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    """What the script found after a run of steps 1 to 6, and one that goes on after step 4."""
    done = run_python([str(SCRIPT), str(folder)], folder)
    assert done.code == 0, done
    assert "WARNING" not in done.stderr, done
    assert "failed" not in done.stderr, done
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_no_logger_imports_a_framework(facts: dict[str, Any]) -> None:
    assert facts["frameworks"] == []


def test_mlflow_has_one_run_with_all_metrics_and_options(facts: dict[str, Any]) -> None:
    first, again = facts["ids"]
    found = facts["mlflow"]
    assert first["mlflow"] == again["mlflow"]
    assert found["ids"] == [first["mlflow"]]
    assert (found["status"], found["name"], found["accuracy"]) == ("FINISHED", "out", 0.75)
    assert (found["params"]["seed"], found["params"]["data.shuffle"]) == ("42", "global")
    lost = [[step, float(step)] for step in (5, 6)]  # MLflow keeps what the first start has measured, too
    assert found["loss"] == sorted(
        [*([step, float(step)] for step in range(1, 5)), *lost, *([step, step + 400.0] for step in range(5, 9))]
    )


def test_wandb_keeps_one_run_offline(facts: dict[str, Any]) -> None:
    first, again = facts["ids"]
    assert first["wandb"] == again["wandb"]
    assert set(facts["wandb"]) == {f"run-{first['wandb']}.wandb"}
    assert facts["wandb_has_metrics"]
    assert all(facts["wandb_has_metrics"])


def test_tensorboard_shows_each_step_once(facts: dict[str, Any], folder: Path) -> None:
    assert facts["ids"]
    shown = shown_scalars(folder / "out" / "tb")
    expected = [*((step, float(step)) for step in range(1, 5)), *((step, step + 400.0) for step in range(5, 9))]
    assert shown["train/loss"] == expected
    assert shown["memory"] == [(step, 5.0) for step in range(1, 9)]
    assert shown["validation/accuracy"][-1] == (8, 0.75)
    tags = [value.tag for event in events_of(folder / "out" / "tb") for value in event.summary.value]
    assert tags.count("weights/weight") == 2


@pytest.mark.parametrize(
    ("logger", "module", "package"),
    [
        ("tensorboard", "tensorboardX", "tensorboardX"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow-skinny"),
    ],
)
def test_a_logger_whose_package_is_missing_is_refused_on_all_ranks(
    logger: str, module: str, package: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own mark of a module that is not to be found
    config = TrainConfig(loggers=logger, data=DataConfig(dir=str(data.folder)))
    for error in run_on_ranks(3, lambda comm: prepare(config, NumpyTask, comm)):
        assert isinstance(error, UsageError)
        assert error.fact.endswith(f"The logger {logger} is asked for, and the package {package} is not installed.")
        assert f"pip install 'hvdtrain[{logger}]'" in error.hint


def test_a_package_that_cannot_be_imported_is_refused_where_it_is_named_and_else_told(tmp_path: Path) -> None:
    for module in ("mlflow", "tensorboardX"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("raise AttributeError('its dependency is too old')")
    broken = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    short = ["--max-steps", "2", "--epochs", "1", "--output-dir", "out"]
    named = run([*short, "--loggers", "mlflow"], tmp_path, broken)
    named.require_refusal("mlflow-skinny cannot be imported: AttributeError: its dependency is too old")
    told = run(short, tmp_path, broken)
    assert told.code == 0, told
    assert "no metrics for TensorBoard: AttributeError: its dependency is too old" in told.stderr


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("train/loss", "train/loss"),
        ("top-5 %", "top-5 _"),
        ("a/../b", "a____b"),
        ("/etc", "_etc"),
        (".hidden", "_hidden"),
        ("größe", "größe"),
    ],
)
def test_names_become_keys_that_mlflow_takes(name: str, key: str) -> None:
    assert key_of(name) == key


def test_no_name_is_the_folder_of_another_one_in_mlflow() -> None:
    """Whatever comes first, and in whichever point; a database takes all names."""
    keys = Keys(in_files=True)
    names = [
        "train/loss",
        "train/loss/box/x",
        "train.loss.box.x",
        "validation/old/loss",
        "validation/old",
        "train/loss",
    ]
    expected = [
        "train/loss",
        "train.loss.box.x",
        "train.loss.box.x_",
        "validation/old/loss",
        "validation.old",
        "train/loss",
    ]
    assert list(map(keys.of, names)) == expected
    assert list(map(Keys(in_files=True).of, ["loss/box", "loss"])) == ["loss/box", "loss_"]
    assert list(map(Keys(in_files=False).of, names[:2])) == names[:2]
