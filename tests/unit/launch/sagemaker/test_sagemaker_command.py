"""`hvdtrain launch sagemaker` as users call it: what it prints and what it refuses."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.cli.launch import run
from hvdtrain.config.parser import parse_train_config
from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker import Estimator
from hvdtrain.launch.sagemaker.hyperparameters import decode, worker_options

FOLDER = Path(__file__).parent / "source"
CLOUD = (
    "sagemaker --instance-type ml.p4d.24xlarge --role arn:aws:iam::111122223333:role/train "
    "--image 111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1 --output-path s3://bucket/jobs --job-name job-1"
)
PIPES = "--instance-count 2 --processes-per-host 8 --input-mode Pipe --channel train=s3://bucket/train/"


def printed(capsys: pytest.CaptureFixture[str], line: str) -> tuple[dict[str, object], str]:
    assert run(shlex.split(line)) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_the_request_is_printed_as_a_user_of_the_command_line_sees_it(tmp_path: Path) -> None:
    """JSON alone on stdout, for `aws sagemaker create-training-job --cli-input-json`; nothing of AWS is needed."""
    line = f"{CLOUD} {PIPES} --channel validation=s3://bucket/validation/ --dry-run -- train --epochs 3"
    done = subprocess.run(
        [sys.executable, "-m", "hvdtrain", "launch", *shlex.split(line)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    request = json.loads(done.stdout)
    assert len(request["InputDataConfig"]) == 8 + 2
    assert json.loads(request["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"]) == 8
    assert request["HyperParameters"]["epochs"] == "3"
    assert all(row.startswith("#") for row in done.stderr.splitlines())
    said = " ".join(done.stderr.replace("#", "").split())
    for text in (
        "16 on 2 machines, 8 on each, started by mpirun",
        "sourcedir.tar.gz with hvdtrain_entry.py, to s3://bucket/jobs/job-1/source/sourcedir.tar.gz",
        "channel train-7: a FIFO that one worker of each machine reads; SageMaker divides the objects over the "
        "machines (ShardedByS3Key); train-7.manifest will be made from the files at s3://bucket/train/",
        "channel validation: a folder; all of it on each machine (FullyReplicated)",
        "request: compared with botocore",
    ):
        assert text in said
    assert list(tmp_path.iterdir()) == []


def test_the_command_comes_back_in_the_container(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The words after -- and the workers' options mean the same to `hvdtrain train`."""
    (tmp_path / "run.yaml").write_text("seed: 7\n")
    (tmp_path / "wine_torch.py").touch()
    words = (
        "--config run.yaml --task wine_torch:Wine --lr 1e-3 --task-args.width 16 --data.check-crc False "
        "--batch_size=8 --debug"
    )
    request, _ = printed(capsys, f"{CLOUD} --source-dir {tmp_path} --dry-run -- train {words}")
    own = request["HyperParameters"]
    assert isinstance(own, dict)
    arguments = worker_options(decode(own))
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert parse_train_config(arguments) == parse_train_config(shlex.split(words))
    finally:
        os.chdir(here)
    assert arguments[arguments.index("--debug") + 1] == "True"


def test_every_flag_reaches_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    request, said = printed(
        capsys,
        f"{CLOUD} --region eu-west-1 --volume-size-gb 100 --max-run-s 60 --use-spot --max-wait-s 90 "
        "--max-retry-attempts 3 --checkpoint-s3-uri s3://bucket/c --env A=1 --env B=2=3 --tag team=x --metric m=a=(.*) "
        "--tag k= --env C= --env HF_TOKEN=x "
        "--subnet subnet-1 --subnet subnet-2 --security-group sg-1 --mpi-options=--verbose --processes-per-host 2 "
        "--nic eth1 --channel train=s3://bucket/a --dry-run",
    )
    assert request["Environment"] == {
        "HOROVOD_GLOO_IFACE": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "A": "1",
        "B": "2=3",
        "C": "",
        "HF_TOKEN": "x",
    }
    assert request["VpcConfig"] == {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    assert request["Tags"] == [{"Key": "team", "Value": "x"}, {"Key": "k", "Value": ""}]
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 90}
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    algorithm = request["AlgorithmSpecification"]
    assert isinstance(algorithm, dict)
    assert algorithm["MetricDefinitions"] == [{"Name": "m", "Regex": "a=(.*)"}]
    own = request["HyperParameters"]
    assert isinstance(own, dict)
    assert json.loads(own["sagemaker_region"]) == "eu-west-1"
    assert json.loads(own["sagemaker_mpi_custom_mpi_options"]).endswith("--verbose")
    assert "no secrets" in said
    assert "environment HF_TOKEN: looks like a secret" in said


def test_an_entry_point_gets_the_flags_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    request, _ = printed(capsys, f"{CLOUD} --entry-point {tmp_path}/train.py --dry-run -- --anything 3")
    own = request["HyperParameters"]
    assert isinstance(own, dict)
    assert (own["anything"], json.loads(own["sagemaker_program"]), "task" in own) == ("3", "train.py", False)


def test_a_local_job_shows_what_workers_get(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown, _ = printed(
        capsys,
        "sagemaker --instance-type local --processes-per-host 2 --input-mode Pipe "
        f"--channel train={tmp_path} --dry-run",
    )
    assert shown["ProcessesPerHost"] == 2
    assert shown["HyperParameters"] == {"task": "digits"}
    assert shown["Channels"] == {
        name: {"mode": "File" if name == "pipe-plan" else "Pipe", "place": str(tmp_path)}
        for name in ("train-0", "train-1", "pipe-plan")
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sagemaker --dry-run", "--instance-type"),
        ("sagemaker --instance-type ml.p3.8xlarge --dry-run", "has no role"),
        (f"{CLOUD} --dry-run -- train --epoch 3", "did you mean --epochs"),
        (f"{CLOUD} --dry-run -- train --epochs many", "--epochs is given as 'many'"),
        (f"{CLOUD} --dry-run -- train --config run.yaml", "give --source-dir"),
        (f"{CLOUD} --dry-run -- shard plan", "SageMaker runs training jobs"),
        (f"{CLOUD} --dry-run -- train 3", "the word '3'"),
        (f"{CLOUD} --channel train --dry-run", "--channel is given 'train'"),
        (f"{CLOUD} --env =x --dry-run", "--env is given ''"),
        (f"{CLOUD} --channel a=s3://b/1 --channel a=s3://b/2 --dry-run", "two channels a"),
        (f"{CLOUD} --pipe-plan plans --channel train=s3://b/1 --dry-run", "come from one place"),
        (f"{CLOUD} --pipe-plan plans --dry-run", "plan.json cannot be opened"),
        (f"{CLOUD} --instance-typ x --dry-run", "did you mean --instance-type"),
        (f"{CLOUD} --input-mode pipe --dry-run", "invalid choice: 'pipe'"),
        (f"{CLOUD} --job-name a_b --dry-run", "job's name is 'a_b'"),
        (f"{CLOUD} --source-dir nosuch --dry-run", "There is no folder"),
        (f"{CLOUD} --source-dir {__file__} --dry-run", "There is no folder"),
        (f"{CLOUD} --entry-point nosuch.py --dry-run", "no file nosuch.py here"),
        (f"{CLOUD} --source-dir {FOLDER} --entry-point nosuch.py --dry-run", "no file nosuch.py in"),
        (f"{CLOUD} --dry-run -- train --task nosuch", "There is no task 'nosuch'"),
        (f"{CLOUD} --dry-run -- train --task mine:Task", "no mine.py and no source_dir"),
        (f"{CLOUD} --source-dir {FOLDER} --dry-run -- train --task mine:Task", "there is no mine.py in"),
        (f"{CLOUD} --channel train=s3://bucket/a --dry-run -- train --data.dir /tmp/x", "the channels never read"),
        (f"{CLOUD} --dry-run -- train --dry-run", "and train nothing"),
        (f"{CLOUD} --dry-run -- train --print-config", "and train nothing"),
        ("sagemaker --instance-type local --dry-run -- train --task mine:Task", "no mine.py and no source_dir"),
        ("sagemaker --instance-type local --dry-run --job-name ../../esc", "job's name is '../../esc'"),
        ("sagemaker --instance-type local --job-name ../../esc", "job's name is '../../esc'"),
        ("sagemaker --instance-type local --job-name ''", "job's name is ''"),
        ("sagemaker --instance-type local --output-path /proc/two", "cannot be written to"),
        (f"sagemaker --instance-type local --output-path {'x' * 300}", "cannot be written to: File name too long"),
        (f"sagemaker --instance-type local --output-path {__file__}", "cannot be written to: Not a directory"),
        (f"{CLOUD} --env =x --dry-run", "write e.g. --env NCCL_DEBUG=INFO"),
        (f"{CLOUD} --metric a= --dry-run", "write e.g. --metric"),
        ("sagemaker --instance-type local --no-wait", "leave wait=False (--no-wait) out"),
    ],
)
def test_a_wrong_call_is_refused_in_three_parts(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        run(shlex.split(line))
    assert message in str(refused.value)
    assert all((refused.value.fact, refused.value.conflict, refused.value.hint))
    assert list(tmp_path.iterdir()) == []


def test_a_value_of_a_variable_is_not_repeated_in_a_refusal() -> None:
    for line in (f"{CLOUD} --env A-B=hunter2 --dry-run", f"{CLOUD} --env =hunter2 --dry-run"):
        with pytest.raises(UsageError) as refused:
            run(shlex.split(line))
        assert "hunter2" not in str(refused.value)


def test_without_boto3_the_request_is_printed_and_submitting_says_what_to_install(tmp_path: Path) -> None:
    """In an interpreter where neither boto3 nor botocore can be imported."""
    blocked = (
        "import sys; sys.modules['boto3'] = sys.modules['botocore'] = None\n"
        "from hvdtrain.cli.main import main; raise SystemExit(main(sys.argv[1:]))"
    )

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        words = ["launch", *shlex.split(CLOUD), *more]
        command = [sys.executable, "-c", blocked, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    shown = call("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["TrainingJobName"] == "job-1"
    assert "not compared: botocore is not installed" in shown.stderr
    refused = call()
    assert refused.returncode == 2, refused.stderr
    assert "HINT: pip install 'hvdtrain[sagemaker]'" in refused.stderr


def test_a_config_file_names_the_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("task: mine:Task\n")
    (tmp_path / "mine.py").touch()
    request, _ = printed(capsys, f"{CLOUD} --source-dir {tmp_path} --dry-run -- train --config run.yaml")
    own = request["HyperParameters"]
    assert isinstance(own, dict)
    assert (own["task"], own["config"]) == ('"mine:Task"', '"run.yaml"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_dir": "nosuch"}, "There is no folder"),
        ({"hyperparameters": {"epochs": "many"}}, "--epochs is given as 'many'"),
        ({"hyperparameters": {"epochs": 3, "nosuch": 3}}, "There is no option --nosuch"),
        ({"task": "nosuch"}, "There is no task 'nosuch'"),
        ({"hyperparameters": {"dry-run": True}}, "train nothing"),
        ({"hyperparameters": {"config": "run.yaml"}}, "give --source-dir FOLDER"),
    ],
)
def test_the_python_interface_refuses_what_the_command_refuses(arguments: dict[str, Any], message: str) -> None:
    cloud = {
        "instance_type": "ml.p3.8xlarge",
        "role": "arn:aws:iam::111122223333:role/train",
        "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
        "output_path": "s3://bucket/jobs",
    }
    with pytest.raises(UsageError) as refused:
        Estimator(**{"task": "digits", **cloud, **arguments}).request()
    assert message in str(refused.value)
    with pytest.raises(UsageError):
        Estimator(**{"task": "digits", **arguments}).fit()
