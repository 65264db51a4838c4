"""SageMaker containers on emulated hosts: under the real training toolkit and its mpirun, and two hosts without it.

The toolkit waits 30 s after a success (`time.sleep(30)` in `sagemaker_training.mpi`), so both kinds of channels are
trained from at the same time, one on each host.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from emulated_hosts import EmulatedHosts
from sagemaker_toolkit import installed, missing, search_path
from support.runs import result_of, topology_of_run

from hvdtrain.launch.sagemaker.source_archive import TASK_PROGRAM_TEXT
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

OPT_ML = Path("/opt/ml")
WORKERS = Path(__file__).parents[1] / "parallel" / "workers"
TRAIN = Path(__file__).parents[2] / "hvdtrain" / "launch" / "sagemaker" / "train.sh"
DEADLINE_S = 480
SHOWN = 1024


@pytest.fixture(scope="module")
def toolkit() -> Path:
    if reason := missing():
        pytest.skip(reason)
    try:
        return installed()
    except RuntimeError as error:
        pytest.skip(f"sagemaker-training cannot be installed: {error}")


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    train = open_split(DataAccess(None, tmp_path / "cache"), "train")
    return Path(train.files[0].path).parent


@pytest.fixture
def opt_ml() -> Iterator[None]:
    """A folder over which each host sees its own."""
    made = not OPT_ML.exists()
    OPT_ML.mkdir(parents=True, exist_ok=True)
    yield
    if made:
        OPT_ML.rmdir()


class Container:
    """One host's /opt/ml."""

    def __init__(self, base: Path, own: Mapping[str, Any], channels: Mapping[str, str], hosts: list[str], host: str):
        self.base = base
        for name in ("input/config", "input/data", "output", "model", "code"):
            (base / name).mkdir(parents=True)
        groups = [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.c5.xlarge", "hosts": hosts}]
        resources = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0", "instance_groups": groups}
        inputs = {name: {"TrainingInputMode": mode} for name, mode in channels.items()}
        self._write("hyperparameters", {name: json.dumps(value) for name, value in own.items()})
        self._write("resourceconfig", {**resources, "current_group_name": "homogeneousCluster"})
        self._write("inputdataconfig", inputs)

    def _write(self, name: str, content: Any) -> None:
        (self.base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))

    def bring(self, channel: str, pattern: Iterator[Path]) -> None:
        folder = self.base / "input" / "data" / channel
        folder.mkdir()
        for path in pattern:
            shutil.copy(path, folder)

    def failure(self) -> str:
        return (self.base / "output" / "failure").read_text()


def for_toolkit(base: Path, host: str, own: Mapping[str, Any], channels: Mapping[str, str] | None = None) -> Container:
    """With what the Estimator would put into the request of two workers on one machine."""
    of_sagemaker = {
        "sagemaker_program": "hvdtrain_entry.py",
        "sagemaker_submit_directory": "/opt/ml/code",
        "sagemaker_region": "us-east-1",
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": 2,
        "sagemaker_mpi_custom_mpi_options": "",
    }
    container = Container(base, {**of_sagemaker, **own}, channels or {}, [host], host)
    (container.base / "code" / "hvdtrain_entry.py").write_text(TASK_PROGRAM_TEXT)
    return container


@contextmanager
def mounted(hosts: EmulatedHosts, containers: Mapping[str, Container]) -> Iterator[None]:
    for host, container in containers.items():
        hosts.bind(host, container.base, OPT_ML)
    try:
        yield
    finally:
        for host in containers:
            hosts.unbind(host, OPT_ML)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("opt_ml")
def test_both_kinds_of_channels_under_the_toolkit(
    toolkit: Path, hosts: EmulatedHosts, digits: Path, tmp_path: Path
) -> None:
    """host1 trains from files, host2 from pipes; two workers each, started by the toolkit's mpirun."""
    plan = tmp_path / "plan"
    argv = [sys.executable, "-m", "hvdtrain", "shard", "pipe-plan", str(digits / "train-*.tfrecord")]
    subprocess.run([*argv, "--workers-per-host", "2", "--out", str(plan)], check=True, timeout=60)
    by_file = for_toolkit(tmp_path / "1", "host1", {"task": "digits", "epochs": 2, "dry-run": False}, {"train": "File"})
    by_file.bring("train", digits.iterdir())
    modes = {"train-0": "Pipe", "train-1": "Pipe", "pipe-plan": "File", "validation": "File"}
    by_pipe = for_toolkit(tmp_path / "2", "host2", {"task": "digits", "epochs": 2, "task-args.width": 4}, modes)
    by_pipe.bring("validation", digits.glob("validation-*"))
    by_pipe.bring("pipe-plan", plan.glob("plan.json"))
    env = {"PATH": search_path(toolkit, tmp_path / "bin"), "OMPI_MCA_plm_rsh_agent": ""}
    with mounted(hosts, {"host1": by_file, "host2": by_pipe}):
        feed = ["shard", "pipe-sim", "--dir", "/opt/ml/input/data", "--plan", str(plan / "plan.json"), "--epochs", "2"]
        agent = hosts.spawn("host2", ["python", "-m", "hvdtrain", *feed])
        started = [hosts.spawn(host, ["train"], env) for host in ("host1", "host2")]
        for each in started:
            finished = each.wait(DEADLINE_S)
            assert finished.returncode == 0, finished.tail()
            assert "mpirun --host" in finished.output, finished.tail()
        assert agent.wait(20).returncode == 0
    result = result_of(by_file.base / "model")
    assert (result["status"], result["world_size"]) == ("finished", 2)
    assert result["metrics"]["accuracy"] > 0.9, result
    assert sorted(path.name for path in (by_file.base / "model").iterdir()) == [
        "config.yaml",
        "model.safetensors",
        "result.json",
    ]
    assert (by_file.base / "output" / "success").exists()
    result = result_of(by_pipe.base / "model")
    assert (result["world_size"], result["samples_seen"]) == (2, 2 * 1438)


@pytest.mark.usefixtures("opt_ml")
def test_the_toolkit_leaves_our_cause_of_a_failure(toolkit: Path, hosts: EmulatedHosts, tmp_path: Path) -> None:
    """A wrong hyperparameter on host1, an exception in one worker of host2."""
    wrong = for_toolkit(tmp_path / "1", "host1", {"task": "digits", "epochz": 1})
    raising = for_toolkit(tmp_path / "2", "host2", {"task": "train_torch_tasks:Faulty"})
    for path in WORKERS.glob("train_*.py"):
        shutil.copy(path, raising.base / "code")
    fault = {"place": "decode", "kind": "raise", "rank": 1, "call": 1, "stamp": str(tmp_path / "stamp")}
    env = {"PATH": search_path(toolkit, tmp_path / "bin"), "OMPI_MCA_plm_rsh_agent": ""}
    with mounted(hosts, {"host1": wrong, "host2": raising}):
        both = [
            hosts.spawn("host1", ["train"], env),
            hosts.spawn("host2", ["train"], {**env, "TRAIN_FAULT": json.dumps(fault)}),
        ]
        for each in both:
            finished = each.wait(DEADLINE_S)
            assert finished.returncode == 1, finished.tail()  # the toolkit's own for any failure
    assert "There is no option --epochz." in wrong.failure()[:SHOWN]
    assert raising.failure().startswith("Rank 1 of 2"), raising.failure()
    assert "RuntimeError: deliberate failure in decode" in raising.failure()[:SHOWN]


@pytest.mark.usefixtures("opt_ml")
def test_two_hosts_train_without_the_toolkit(hosts: EmulatedHosts, digits: Path, tmp_path: Path) -> None:
    """An image of one's own: two machines with two workers each, over the network, no ssh and no MPI."""
    names = list(hosts.names)
    own = {"task": "digits", "epochs": 1, "task-args.width": 4, "sagemaker_mpi_num_of_processes_per_host": 2}
    containers = {name: Container(tmp_path / name, own, {"train": "File"}, names, name) for name in names}
    for container in containers.values():
        container.bring("train", digits.iterdir())
    with mounted(hosts, containers):
        env = {"TRAINING_JOB_NAME": "digits-2026", "PYTHON": sys.executable}
        started = [hosts.spawn(name, [str(TRAIN), "train"], env) for name in names]
        for each in started:
            finished = each.wait(DEADLINE_S)
            assert finished.returncode == 0, finished.tail()
    result = result_of(containers["host1"].base / "model")
    assert (result["world_size"], result["samples_seen"]) == (4, 1438)
    told = topology_of_run(containers["host1"].base / "output" / "data")
    assert (told["num_nodes"], told["local_size"]) == (2, 2), told
    assert not any((containers["host2"].base / "model").iterdir())


@pytest.mark.usefixtures("opt_ml")
def test_both_hosts_say_why_when_one_worker_fails(hosts: EmulatedHosts, tmp_path: Path) -> None:
    names = list(hosts.names)
    own = {"task": "train_torch_tasks:Faulty", "sagemaker_submit_directory": str(WORKERS), "global-batch-size": 48}
    containers = {name: Container(tmp_path / name, own, {}, names, name) for name in names}
    fault = {"place": "decode", "kind": "raise", "rank": 1, "call": 3, "stamp": str(tmp_path / "stamp")}
    with mounted(hosts, containers):
        env = {"TRAINING_JOB_NAME": "digits-2027", "PYTHON": sys.executable, "TRAIN_FAULT": json.dumps(fault)}
        started = [hosts.spawn(name, [str(TRAIN)], env) for name in names]
        for each in started:
            finished = each.wait(DEADLINE_S)
            assert finished.returncode == 1, finished.tail()
    assert "RuntimeError: deliberate failure in decode" in containers["host2"].failure()[:SHOWN]
    assert "Rank 1 of 2 on host2 failed" in containers["host2"].failure()[:SHOWN]
    assert "Another rank has ended or stalled" in containers["host1"].failure()[:SHOWN]
