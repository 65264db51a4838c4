"""`docker run IMAGE train`, with the files that SageMaker mounts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine import Engine


@pytest.fixture
def opt_ml(tmp_path: Path) -> Path:
    """/opt/ml of a job of one container; all may write it."""
    config = tmp_path / "input" / "config"
    for folder in (config, tmp_path / "input" / "data", tmp_path / "model", tmp_path / "output", tmp_path / "code"):
        folder.mkdir(parents=True)
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    (config / "resourceconfig.json").write_text(json.dumps(hosts), encoding="utf-8")
    (config / "inputdataconfig.json").write_text("{}", encoding="utf-8")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return tmp_path


def test_train_leaves_a_model(engine: Engine, image: str, opt_ml: Path) -> None:
    parameters = {"max-steps": "20", "sagemaker_mpi_num_of_processes_per_host": "2"}
    (opt_ml / "input/config/hyperparameters.json").write_text(json.dumps(parameters), encoding="utf-8")
    run = engine.run(image, "train", flags=("-v", f"{opt_ml}:/opt/ml"))
    assert any((opt_ml / "model").iterdir()), run.stdout
    assert not (opt_ml / "output" / "failure").exists()


def test_train_tells_sagemaker_what_failed(engine: Engine, image: str, opt_ml: Path) -> None:
    (opt_ml / "input/config/hyperparameters.json").write_text('{"epochz": "1"}', encoding="utf-8")
    run = engine.run(image, "train", flags=("-v", f"{opt_ml}:/opt/ml"), check=False)
    assert run.returncode == 2
    assert "epochz" in (opt_ml / "output" / "failure").read_text(encoding="utf-8")
