"""The `CreateTrainingJob` request: its text on record, and what SageMaker's own service model says of it.

To accept a changed text: run it with HVDTRAIN_UPDATE_GOLDEN=1.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker import Estimator, TrainingInput, TrainingSpec
from hvdtrain.launch.sagemaker.request import as_text, new_job_name, region_of
from hvdtrain.launch.sagemaker.request_checks import problems, require_valid_request

SOURCE = Path(__file__).parent / "source"
GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).parents[4] / "launch" / "sagemaker_estimator.py"
UPDATE = os.environ.get("HVDTRAIN_UPDATE_GOLDEN") == "1"

SHAPE = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape

CLOUD: dict[str, Any] = {
    "role": "arn:aws:iam::111122223333:role/train",
    "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
    "output_path": "s3://bucket/jobs",
    "instance_type": "ml.p3.8xlarge",
}
FULL: dict[str, Any] = {
    **CLOUD,
    "hyperparameters": {"epochs": 3, "lr": 0.1, "amp": True, "note": 'it\'s "quoted"; $HOME', "data.dir": "/data"},
    "instance_count": 2,
    "processes_per_host": 4,
    "region": "eu-west-1",
    "volume_size_gb": 500,
    "max_run_s": 3600,
    "max_wait_s": 7200,
    "use_spot": True,
    "max_retry_attempts": 2,
    "checkpoint_s3_uri": "s3://bucket/checkpoints",
    "environment": {"NCCL_DEBUG": "INFO"},
    "subnets": ("subnet-0a", "subnet-0b"),
    "security_group_ids": ("sg-0a",),
    "tags": {"team": "vision", "größe": "4 x 2"},
    "metric_definitions": {"validation:accuracy": r"accuracy=([0-9.]+)"},
    "custom_mpi_options": "--verbose",
    "network_interface_name": "eth1",
    "container_entrypoint": ("train",),
    "volume_kms_key": "alias/disk",
    "output_kms_key": "alias/results",
    "encrypt_inter_container_traffic": True,
}
DATA = {"train": "s3://bucket/train/", "validation": "s3://bucket/validation/"}
RICH = {
    "train": TrainingInput(
        "s3://bucket/{local_rank}/",
        content_type="application/x-recordio",
        compression="Gzip",
        record_wrapping="RecordIO",
        shuffle_seed=7,
    ),
    "labels": TrainingInput("s3://bucket/labels.json", s3_data_type="ManifestFile", input_mode="FastFile"),
}


def requests() -> dict[str, dict[str, Any]]:
    pipes = {**CLOUD, "input_mode": "Pipe", "processes_per_host": 4}
    return {
        "no_channel": Estimator(task="digits", **CLOUD).request(job_name="job-1"),
        "file": Estimator(task="digits", **CLOUD).request(DATA, "job-1"),
        "file_full": Estimator(entry_point="train.py", source_dir=str(SOURCE), **FULL).request(DATA, "job-1"),
        "pipe": Estimator(task="digits", **pipes).request(DATA, "job-1"),
        "pipe_two_machines": Estimator(task="digits", instance_count=2, **pipes).request(DATA, "job-1"),
        "own_script": Estimator(entry_point=str(SOURCE / "train.py"), **{**pipes, "instance_count": 3}).request(
            RICH, "job-1"
        ),
    }


REQUESTS = requests()


@pytest.mark.parametrize("name", REQUESTS)
def test_the_text_is_the_one_on_record(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    if UPDATE:
        path.write_text(as_text(REQUESTS[name]))
    assert as_text(REQUESTS[name]) == path.read_text()


def test_every_record_has_its_request() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(REQUESTS)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_service_model_accepts_it(name: str) -> None:
    assert ParamValidator().validate(REQUESTS[name], SHAPE).generate_report() == ""
    assert list(problems(REQUESTS[name], SHAPE)) == []
    assert re.fullmatch(r"botocore \d+\.\d+\.\d+", require_valid_request(REQUESTS[name]) or "")


@pytest.mark.parametrize("name", REQUESTS)
def test_what_it_asks_for(name: str) -> None:
    request = REQUESTS[name]
    channels = {channel["ChannelName"]: channel for channel in request.get("InputDataConfig", [])}
    assert len(channels) == len(request.get("InputDataConfig", [])) <= 20
    hosts = request["ResourceConfig"]["InstanceCount"]
    mode = request["AlgorithmSpecification"]["TrainingInputMode"]
    own = {key: json.loads(value) for key, value in request["HyperParameters"].items()}
    workers = own.get("sagemaker_mpi_num_of_processes_per_host", 1)
    assert own.get("sagemaker_mpi_enabled", False) is (hosts * workers > 1)
    assert own["sagemaker_job_name"] == request["TrainingJobName"]
    assert own["sagemaker_submit_directory"] == "s3://bucket/jobs/job-1/source/sourcedir.tar.gz"
    pipes = [each for each in channels.values() if each.get("InputMode", mode) == "Pipe"]
    assert [each["ChannelName"] for each in pipes] == [f"train-{rank}" for rank in range(workers if pipes else 0)]
    for each in pipes:
        place = each["DataSource"]["S3DataSource"]
        assert place["S3DataDistributionType"] == ("ShardedByS3Key" if hosts > 1 else "FullyReplicated")


# What each of these breaks, `ParamValidator` lets pass.
BROKEN: list[tuple[list[str | int], Any, str]] = [
    (
        ["TrainingJobName"],
        "job_1",
        "TrainingJobName is 'job_1'. It must match [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
    ),
    (["TrainingJobName"], "j" * 64, "SageMaker takes 1 to 63.\nHINT: change job_name (--job-name)."),
    (["RoleArn"], "arn:aws:iam::1:role/train", "RoleArn is"),
    (["AlgorithmSpecification", "TrainingInputMode"], "Stream", "Valid: FastFile, File, Pipe"),
    (["ResourceConfig", "InstanceType"], "ml.p3.8xlarg", "did you mean 'ml.p3.8xlarge'"),
    (["ResourceConfig", "KeepAlivePeriodInSeconds"], 99999, "KeepAlivePeriodInSeconds is 99999"),
    (["InputDataConfig", 0, "ChannelName"], "a b", "InputDataConfig[0].ChannelName is 'a b'"),
    (["InputDataConfig", 0, "DataSource", "S3DataSource", "S3Uri"], "hdfs://x", "S3Uri is 'hdfs://x'"),
    (["VpcConfig", "Subnets"], ["subnet-1"] * 17, "VpcConfig.Subnets has 17 entries"),
    (["HyperParameters", "note"], "x" * 2501, "HyperParameters['note'] has 2501 characters"),
    (["Environment"], {"A-B": "1"}, "a key of Environment is 'A-B'"),
    (["Tags", 0, "Value"], "x" * 257, "change tags (--tag)"),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_what_the_service_would_refuse_is_refused_here(path: list[Any], value: Any, message: str) -> None:
    request = copy.deepcopy(REQUESTS["file_full"])
    place: Any = request
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert ParamValidator().validate(request, SHAPE).generate_report() == ""
    with pytest.raises(UsageError) as refused:
        require_valid_request(request)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instance_type": "ml.p3.9xlarge"}, "InstanceType is 'ml.p3.9xlarge'. The API has no such choice."),
        ({"role": "arn:aws:iam::1:role/train"}, "change role (--role)"),
        ({"hyperparameters": {f"a{i}": 1 for i in range(98)}}, "more than 93, goes into a --config file"),
        ({"hyperparameters": {"note": "x" * 2500}}, "HyperParameters['note'] has 2502 characters"),
        ({"environment": {"A B": "1"}}, "a key of Environment is 'A B'"),
        ({"subnets": ("subnet-1",)}, "Invalid length for parameter VpcConfig.SecurityGroupIds"),
        ({"security_group_ids": ("sg-1",)}, "Invalid length for parameter VpcConfig.Subnets"),
        ({"keep_alive_period_s": 99999}, "change keep_alive_period_s (--keep-alive-period-s)"),
        ({"max_retry_attempts": 31}, "RetryStrategy.MaximumRetryAttempts is 31. SageMaker takes 1 to 30."),
    ],
)
def test_what_the_service_model_knows_is_refused_by_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Estimator(entry_point=str(SOURCE / "train.py"), **{**CLOUD, **changes}).request(DATA, "job-1")
    assert message in str(refused.value)


def test_21_channels_and_unknown_fields_are_refused() -> None:
    request = copy.deepcopy(REQUESTS["file"])
    request["InputDataConfig"] = request["InputDataConfig"][:1] * 21
    with pytest.raises(UsageError, match="InputDataConfig has 21 entries"):
        require_valid_request(request)
    with pytest.raises(UsageError, match='Unknown parameter in input: "Rolle"'):
        require_valid_request({**REQUESTS["file"], "Rolle": "x"})


def test_sagemakers_own_sdk_renders_the_same_request() -> None:
    """On record: what sagemaker 2.257.7 sends for `PyTorch(distribution={"mpi": …}, …).fit(…)` with these settings.

    It cannot be installed beside TensorFlow (protobuf < 7). Besides these fields, the two requests are equal.
    """
    theirs = json.loads((Path(__file__).parent / "sdk" / "request.json").read_text())
    settings = {
        **CLOUD,
        "hyperparameters": {"epochs": 3, "lr": 0.1, "amp": True, "name": "x y"},
        "custom_mpi_options": "",
        "use_spot_instances": True,
        "max_run": 3600,
        "max_wait": 7200,
        "checkpoint_s3_uri": "s3://bucket/ck",
        "environment": {"FOO": "1"},
        "subnets": ("subnet-1",),
        "security_group_ids": ("sg-1",),
        "tags": {"a": "b"},
        "max_retry_attempts": 2,
    }
    job = {"entry_point": "train.py", "source_dir": str(SOURCE), "instance_count": 2, "processes_per_host": 4}
    train = TrainingInput("s3://bucket/train/{local_rank}/", content_type="application/x-tfrecord", shuffle_seed=7)
    inputs = {"train": train, "validation": TrainingInput("s3://bucket/val/", input_mode="File")}
    ours = Estimator(**job, **settings, input_mode="Pipe").request(inputs, "digits-1")
    assert ours["CheckpointConfig"].pop("LocalPath") == "/opt/ml/checkpoints"  # also the service's default
    assert theirs["HyperParameters"].pop("sagemaker_container_log_level") == "20"  # of the toolkit, INFO
    assert theirs.pop("ProfilerConfig") == {"DisableProfiler": True}
    assert ours == theirs


@pytest.mark.parametrize(
    ("changes", "environ", "region"),
    [
        ({"region": "eu-west-1"}, {"AWS_REGION": "us-west-2"}, "eu-west-1"),
        ({}, {"AWS_REGION": "us-west-2"}, "us-east-1"),
        ({"image": "registry.example.com/x:1"}, {"AWS_REGION": "us-west-2"}, "us-west-2"),
        ({"image": "registry.example.com/x:1"}, {"AWS_DEFAULT_REGION": "us-west-1"}, "us-west-1"),
    ],
)
def test_the_region_of_a_job(changes: dict[str, Any], environ: dict[str, str], region: str) -> None:
    assert region_of(TrainingSpec(task="digits", **{**CLOUD, **changes}), environ) == region


def test_a_job_without_a_region_is_refused_naming_its_image() -> None:
    with pytest.raises(UsageError, match="no region.*'x:1'"):
        region_of(TrainingSpec(task="digits", **{**CLOUD, "image": "x:1"}), {})


def test_job_names_hold_the_time() -> None:
    spec = TrainingSpec(task="digits", **CLOUD, base_job_name="j" * 39)
    name = new_job_name(spec, datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC))
    assert name == "j" * 39 + "-2026-01-02-03-04-05-678"
    assert len(name) == 63


def test_the_ready_to_edit_script_prints_a_valid_request(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my_task.py").touch()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    request = json.loads(done.stdout)
    assert ParamValidator().validate(request, SHAPE).generate_report() == ""
    assert list(problems(request, SHAPE)) == []
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert json.loads(request["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"]) == 4
    names = [channel["ChannelName"] for channel in request["InputDataConfig"]]
    assert names == ["train-0", "train-1", "train-2", "train-3", "pipe-plan", "validation"]


def test_channels_are_not_made_for_a_name_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="bad name/with slash"):
        Estimator(task="digits").channels({"train": "s3://bucket/data"}, "bad name/with slash")
