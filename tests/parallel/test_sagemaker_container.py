"""A container of one's own on this machine: files as SageMaker writes them, the image's `train`, real workers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file
from support.processes import Spawned, environment, run_command
from support.runs import result_of

from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

WORKERS = Path(__file__).parent / "workers"
TRAIN = Path(__file__).parents[2] / "hvdtrain" / "launch" / "sagemaker" / "train.sh"
DEADLINE_S = 150.0
SHOWN = 1024  # characters of the failure file that SageMaker shows


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = open_split(DataAccess(None, tmp_path_factory.mktemp("cache") / "data"), "train")
    return Path(train.files[0].path).parent


class Container:
    """A base folder as SageMaker fills it, and the process that an image's `train` becomes."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("input/config", "input/data", "output", "model"):
            (base / name).mkdir(parents=True)

    def write(
        self, hyperparameters: Mapping[str, Any], channels: Mapping[str, str] | None = None, workers: int = 2
    ) -> None:
        own = {"task": "digits", "sagemaker_mpi_num_of_processes_per_host": workers, **hyperparameters}
        contents: dict[str, Any] = {
            "hyperparameters": {name: json.dumps(value) for name, value in own.items()},
            "resourceconfig": {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"},
            "inputdataconfig": {name: {"TrainingInputMode": mode} for name, mode in (channels or {}).items()},
        }
        for name, content in contents.items():
            (self.base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))

    def bring(self, channel: str, folder: Path) -> None:
        (self.base / "input" / "data" / channel).symlink_to(folder)

    def environment(self, **more: str) -> dict[str, str]:
        return {"SAGEMAKER_BASE_DIR": str(self.base), "PYTHON": sys.executable, "TRAINING_JOB_NAME": "j", **more}

    def train(self, **environment: str) -> Any:
        return run_command([str(TRAIN), "train"], DEADLINE_S, env=self.environment(**environment))

    def failure(self) -> str:
        return (self.base / "output" / "failure").read_text()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path / "ml")


def test_two_workers_train_from_a_channel_and_leave_the_model(container: Container, digits: Path) -> None:
    container.write({"epochs": 3, "lr": 2e-3, "dry-run": False, "data.check_crc": False}, {"train": "File"})
    container.bring("train", digits)
    finished = container.train()
    assert finished.returncode == 0, finished.tail()
    model, run = container.base / "model", container.base / "output" / "data"
    assert sorted(path.name for path in model.iterdir()) == ["config.yaml", "model.safetensors", "result.json"]
    result = result_of(container.base / "model")
    assert (result["status"], result["world_size"]) == ("finished", 2)
    assert result["metrics"]["accuracy"] > 0.9, finished.tail()
    newest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    assert newest.name.endswith(f"{result['steps']:08d}")
    assert (model / "model.safetensors").read_bytes() == (newest / "model.safetensors").read_bytes()
    assert sum(array.size for array in load_file(model / "model.safetensors").values()) > 100_000
    config = yaml.safe_load((model / "config.yaml").read_text())
    assert (config["dry_run"], config["data"]["check_crc"], config["lr"]) == (False, False, 2e-3)
    assert config["data"]["dir"] == str(container.base / "input" / "data" / "train")
    assert not (container.base / "output" / "failure").exists()


def test_a_wrong_hyperparameter_is_named_where_sagemaker_shows_it(container: Container) -> None:
    container.write({"epochz": 3})
    finished = container.train()
    assert finished.returncode == 2, finished.tail()
    shown = container.failure()[:SHOWN]
    assert "There is no option --epochz." in shown
    assert "did you mean --epochs?" in shown
    assert not any((container.base / "model").iterdir())


def test_a_channel_without_a_folder_starts_no_worker(container: Container) -> None:
    container.write({}, {"train": "File"})
    finished = container.train()
    assert (finished.returncode, finished.stdout) == (2, ""), finished.tail()
    assert container.failure()[:SHOWN].startswith("The channel train has no folder ")
    assert "HINT: check the channel's S3 location" in container.failure()[:SHOWN]


@pytest.mark.parametrize(
    ("kind", "code", "told"),
    [
        ("raise", 1, ["Rank 1 of 2 failed with exit code 1.", "RuntimeError: deliberate failure in decode"]),
        ("kill", 1, ["Rank 1 of 2 was killed by SIGKILL."]),
    ],
)
def test_what_befalls_one_worker_is_the_cause(
    kind: str, code: int, told: list[str], container: Container, tmp_path: Path
) -> None:
    container.write({"task": "train_torch_tasks:Faulty", "sagemaker_submit_directory": str(WORKERS), "max-steps": 9})
    fault = {"place": "decode", "kind": kind, "rank": 1, "call": 1, "stamp": str(tmp_path / "stamp")}
    finished = container.train(TRAIN_FAULT=json.dumps(fault))
    assert finished.returncode == code, finished.tail()
    shown = container.failure()[:SHOWN]
    for words in told:
        assert words in shown, container.failure()
    assert shown.startswith(told[0])
    assert not any((container.base / "model").iterdir())


def test_a_cause_that_is_there_already_stays(container: Container) -> None:
    container.write({}, {"train": "File"})
    (container.base / "output" / "failure").write_text("the first cause\n")
    assert container.train().returncode == 2
    assert container.failure() == "the first cause\n"


def test_a_stopped_spot_instance_goes_on_from_its_checkpoints(container: Container) -> None:
    """SIGTERM reaches the workers; what stands in /opt/ml/checkpoints is where the next container begins."""
    (container.base / "checkpoints").mkdir()
    small = {"epochs": 200, "task-args.width": 2}
    container.write({**small, "checkpoint-interval": 5})
    latest = container.base / "checkpoints" / "checkpoints" / "latest"
    with Spawned([str(TRAIN)], environment(container.environment())) as training:
        training.await_that(latest.exists, "checkpoint", DEADLINE_S)
        training.process.send_signal(signal.SIGTERM)
        finished = training.wait(DEADLINE_S)
    assert finished.returncode in (75, 143), finished.tail()
    assert not any((container.base / "model").iterdir())
    assert container.failure().strip()
    (container.base / "output" / "failure").unlink()  # the next instance has an output folder of its own
    reached = int(latest.read_text().strip().removeprefix("step_"))
    container.write({**small, "max-steps": reached + 3})
    finished = container.train()
    assert finished.returncode in (0, 75), finished.tail()
    assert f"training from step {reached} " in finished.stderr, finished.tail()
