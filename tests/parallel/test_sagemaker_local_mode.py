"""`instance_type="local"`: the whole contract on this machine, with pipes, and with two hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import read_json, result_of

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.channel import Input, Inputs, PipePlanInput
from hvdtrain.launch.sagemaker.channels import make_channels
from hvdtrain.launch.sagemaker.local.mode import run_local
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

DEADLINE_S = 150
RECORDS = 1438


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = open_split(DataAccess(None, tmp_path_factory.mktemp("cache") / "data"), "train")
    return Path(train.files[0].path).parent


def run(spec: TrainingSpec, inputs: Inputs, folder: Path) -> Path:
    return run_local(spec, make_channels(spec, inputs, "", folder.parent / "plans"), folder)


def pipe_plan(
    digits: Path, folder: Path, workers: int, hosts: int = 1, distribution: str = "divided"
) -> dict[str, Input]:
    """The training data by a plan for `hosts` of `workers` each."""
    job = ["--workers-per-host", str(workers), "--hosts", str(hosts), "--distribution", distribution]
    argv = ["shard", "pipe-plan", str(digits / "train-*.tfrecord"), *job, "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "hvdtrain", *argv], check=True, timeout=DEADLINE_S)
    return {"train": PipePlanInput(str(folder))}


def test_every_record_comes_once_an_epoch_through_the_pipes_of_two_local_ranks(digits: Path, tmp_path: Path) -> None:
    validation = tmp_path / "validation"
    validation.mkdir()
    for path in digits.glob("validation-*"):
        (validation / path.name).symlink_to(path)
    spec = TrainingSpec(
        task="digits",
        processes_per_host=2,
        input_mode="Pipe",
        hyperparameters={"epochs": 2, "max-steps": 1000, "dry-run": False, "task-args.width": 4},
    )
    channels = {**pipe_plan(digits, tmp_path / "plan", 2), "validation": str(validation)}
    folder = run(spec, channels, tmp_path / "jobs")
    result = result_of(folder / "model")
    assert (result["world_size"], result["epochs"]) == (2, 2)
    assert result["samples_seen"] == 2 * RECORDS
    inputs = read_json(folder / "input" / "config" / "inputdataconfig.json")
    assert {name: each["TrainingInputMode"] for name, each in inputs.items()} == {
        "train-0": "Pipe",
        "train-1": "Pipe",
        "pipe-plan": "File",
        "validation": "File",
    }
    assert "162,494 bytes" in (folder / "pipe-sim.log").read_text()
    assert not list((folder / "input" / "data").glob("train-?_*"))


@pytest.mark.parametrize("distribution", ["divided", "sharded-by-s3-key"])
def test_two_hosts_read_each_record_once_from_their_pipes(distribution: str, digits: Path, tmp_path: Path) -> None:
    """A channel for each of two ranks, there on both hosts; or one for each local rank, whose files are divided."""
    channels = pipe_plan(digits, tmp_path / "plan", 1, 2, distribution)
    steps = {"data.pipe-steps": 30} if distribution == "sharded-by-s3-key" else {}
    spec = TrainingSpec(
        task="digits",
        instance_count=2,
        input_mode="Pipe",
        hyperparameters={"epochs": 1, "warmup-epochs": 0, "global-batch-size": 48, "task-args.width": 4, **steps},
    )
    folder = run(spec, channels, tmp_path / "jobs")
    assert result_of(folder / "model")["world_size"] == 2
    assert result_of(folder / "model")["samples_seen"] == RECORDS
    inputs = read_json(folder / "input" / "config" / "inputdataconfig.json")
    assert (inputs["train-0"]["S3DistributionType"] == "ShardedByS3Key") == bool(steps)
    environment = read_json(folder / "output" / "data" / "env.json")
    assert (environment["topology"]["num_nodes"], environment["topology"]["local_size"]) == (2, 1), environment
    assert folder.name == "algo-1"
    assert not any((tmp_path / "jobs" / "algo-2" / "model").iterdir())


def test_a_script_of_ones_own_gets_flags_and_variables(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "own.py").write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "import helper\n"
        "told = {'argv': sys.argv[1:], 'rank': os.environ['HOROVOD_RANK'], 'train': os.environ['SM_CHANNEL_TRAIN']}\n"
        "Path(os.environ['SM_MODEL_DIR'], f'rank_{told[\"rank\"]}.json').write_text(json.dumps(told))\n"
    )
    (tmp_path / "source" / "helper.py").touch()
    (tmp_path / "data").mkdir()
    spec = TrainingSpec(
        entry_point="own.py",
        source_dir=str(tmp_path / "source"),
        processes_per_host=2,
        hyperparameters={"amp": True, "width": 16},
    )
    folder = run(spec, {"train": str(tmp_path / "data")}, tmp_path / "jobs")
    told = [read_json(folder / "model" / f"rank_{rank}.json") for rank in range(2)]
    assert [each["argv"] for each in told] == [["--amp", "True", "--width", "16"]] * 2
    assert Path(told[1]["train"]).samefile(tmp_path / "data")


def test_the_cause_reaches_who_called_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = TrainingSpec(task="digits", hyperparameters={"batch-size": 3.5})
    with pytest.raises(UsageError, match="--batch-size is given as '3.5'") as caught:
        run(spec, {}, tmp_path / "jobs")
    assert caught.value.fact == "The training job failed on algo-1 with exit code 2."
    assert caught.value.hint == "`hvdtrain train --help-all` explains --batch-size."
    assert "--batch-size" in capfd.readouterr().err
    with pytest.raises(UsageError, match="holds a training job already"):
        run(spec, {}, tmp_path / "jobs")


def test_what_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    spec = TrainingSpec(task="digits")
    with pytest.raises(UsageError, match=r"There is no such file or folder"):
        run(spec, {"train": str(tmp_path / "nowhere")}, tmp_path / "jobs")
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a pipe plan"):
        run(spec, PipePlanInput(str(tmp_path)), tmp_path / "jobs")
    (tmp_path / "train-0.manifest").write_text('[{"prefix": "/nowhere/"}, "a"]')
    script = TrainingSpec(entry_point="train.py", input_mode="Pipe")
    with pytest.raises(UsageError, match="There is no file /nowhere/a"):
        run(script, {"train-0": str(tmp_path / "train-0.manifest")}, tmp_path / "jobs")
    assert not (tmp_path / "jobs").exists()


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    spec = TrainingSpec(entry_point=str(tmp_path / "slow.py"), max_run_s=2)
    with pytest.raises(HvdtrainError, match="has not ended within its max_run_s"):
        run(spec, {}, tmp_path / "jobs")
