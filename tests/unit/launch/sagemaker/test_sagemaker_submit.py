"""Jobs handed over to AWS: against moto's server on this machine, whose answers can be replaced by refusals.

moto has S3, CloudWatch Logs and SageMaker's training jobs, which it completes at once and never checks.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.sagemaker.models import sagemaker_backends
from support.moto_server import MotoServer

from data_sharding.formats.writers import TFRecordWriter
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker import Estimator
from hvdtrain.launch.sagemaker.aws import LOG_GROUP, Service, TrainingJob
from hvdtrain.launch.sagemaker.spec import TASK_PROGRAM

REGION = "us-east-1"
Fault = Callable[[str, str], tuple[str, dict[str, str]] | None]


class Aws(MotoServer):
    """moto behind HTTP. `fault(method, operation)` may replace an answer by (status, JSON)."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        super().__init__()

    def replaced(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes] | None:
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2] or environ["PATH_INFO"]
        answer = self.fault(environ["REQUEST_METHOD"], operation) if self.fault else None
        if answer is None:
            return None
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return answer[0], [("Content-Type", "application/x-amz-json-1.1")], json.dumps(answer[1]).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    aws = Aws()
    yield aws
    aws.stop()


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Aws]:
    """In whose environment AWS is `server`, and nothing of the real machine's configuration is seen."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "absent"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "absent"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield server
    server.fault = None


@pytest.fixture
def bucket(aws: Aws, request: pytest.FixtureRequest) -> str:  # noqa: ARG001
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def estimator(bucket: str, **changes: Any) -> Estimator:
    settings = {
        "task": "digits",
        "role": "arn:aws:iam::111122223333:role/train",
        "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
        "output_path": f"s3://{bucket}/jobs",
        "instance_type": "ml.p3.8xlarge",
        "poll_s": 0.01,
    }
    return Estimator(**{**settings, **changes})


def objects(bucket: str) -> dict[str, bytes]:
    s3 = boto3.client("s3")
    found = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {each["Key"]: s3.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in found}


def job(name: str) -> Any:
    return sagemaker_backends[DEFAULT_ACCOUNT_ID][REGION].training_jobs[name]


def names() -> set[str]:
    return set(sagemaker_backends[DEFAULT_ACCOUNT_ID][REGION].training_jobs)


def test_the_request_arrives_and_the_source_is_where_it_says(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.py").write_text("x = 1\n")
    one = estimator(bucket, source_dir=str(tmp_path / "src"), task="mine:Task", processes_per_host=4)
    inputs = {"train": f"s3://{bucket}/train/", "validation": f"s3://{bucket}/validation/"}
    one.fit(inputs, job_name="arrives-1")
    latest = one.latest_training_job
    assert isinstance(latest, TrainingJob)
    assert latest.name == "arrives-1"
    assert one.model_data == f"s3://{bucket}/jobs/arrives-1/output/model.tar.gz"
    seen, sent = latest.describe(), one.request(inputs, "arrives-1")
    for field in ("RoleArn", "HyperParameters", "InputDataConfig", "ResourceConfig", "StoppingCondition"):
        assert seen[field] == sent[field]
    uri = json.loads(sent["HyperParameters"]["sagemaker_submit_directory"])
    archive = objects(bucket)[uri.removeprefix(f"s3://{bucket}/")]
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert opened.getnames() == [TASK_PROGRAM, "mine.py"]


def test_pipes_are_dealt_from_what_is_in_the_bucket(bucket: str, tmp_path: Path) -> None:
    """Each object in one channel, and each channel with the manifest that the request names."""
    s3 = boto3.client("s3")
    for number in range(5):
        with TFRecordWriter(tmp_path / "one.tfrecord") as writer:
            writer.write(b"record" * (number + 1))
        s3.upload_file(str(tmp_path / "one.tfrecord"), bucket, f"data/part-{number}.tfrecord")
    one = estimator(bucket, input_mode="Pipe", processes_per_host=2, instance_count=2)
    one.fit({"train": f"s3://{bucket}/data/"}, job_name="pipes-1")
    found = objects(bucket)
    manifests = [json.loads(found[f"jobs/pipes-1/input/train-{rank}.manifest"]) for rank in range(2)]
    assert all(manifest[0] == {"prefix": f"s3://{bucket}/data/"} for manifest in manifests)
    assert sorted(key for manifest in manifests for key in manifest[1:]) == [f"part-{i}.tfrecord" for i in range(5)]
    plan = json.loads(found["jobs/pipes-1/input/plan.json"])
    assert (plan["hosts"], plan["workers_per_host"], sum(each["records"] for each in plan["channels"])) == (2, 2, 5)
    for channel in job("pipes-1").input_data_config:
        place = channel["DataSource"]["S3DataSource"]
        assert place["S3Uri"].removeprefix(f"s3://{bucket}/") in found
        assert place["S3DataDistributionType"] == (
            "FullyReplicated" if channel["ChannelName"] == "pipe-plan" else "ShardedByS3Key"
        )


def test_a_variable_that_sounds_secret_is_pointed_out_without_its_value(
    bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"HF_TOKEN": "hunter2", "TOKENIZERS_PARALLELISM": "0"}
    estimator(bucket, environment=variables).fit(f"s3://{bucket}/train/", job_name="secret-1")
    said = capsys.readouterr().err
    assert "whoever may see the job sees the values of HF_TOKEN\n" in said
    assert "hunter2" not in said


def test_a_job_that_fails_says_why(bucket: str) -> None:
    one = estimator(bucket)
    one.fit(f"s3://{bucket}/train/", wait=False, job_name="fails-1")
    ended = job("fails-1")
    ended.training_job_status, ended.failure_reason = "Failed", "AlgorithmError: rank 3: CUDA out of memory"
    assert isinstance(one.latest_training_job, TrainingJob)
    with pytest.raises(HvdtrainError, match="fails-1 failed") as failed:
        one.latest_training_job.wait(10)
    assert "CUDA out of memory" in failed.value.conflict
    assert "aws logs tail" in failed.value.hint


def test_a_job_that_was_stopped_and_one_that_goes_on(bucket: str) -> None:
    one = estimator(bucket)
    one.fit(f"s3://{bucket}/train/", wait=False, job_name="stops-1")
    latest, state = one.latest_training_job, job("stops-1")
    assert isinstance(latest, TrainingJob)
    state.training_job_status = state.secondary_status = "InProgress"
    with pytest.raises(HvdtrainError, match="is still InProgress after 0 s"):
        latest.wait(0.05)
    state.training_job_status, state.secondary_status = "Stopped", "MaxRuntimeExceeded"
    with pytest.raises(HvdtrainError, match=r"was stopped \(MaxRuntimeExceeded\)"):
        latest.wait(60)


def test_logs_of_all_machines_are_printed_once(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName=LOG_GROUP)
    for machine in (1, 2):
        stream = {"logGroupName": LOG_GROUP, "logStreamName": f"logs-1/algo-{machine}-1700000000"}
        logs.create_log_stream(**stream)
        events = [{"timestamp": int(time.time() * 1000) + line, "message": f"line {line}"} for line in range(3)]
        logs.put_log_events(**stream, logEvents=events)
    estimator(bucket).fit(f"s3://{bucket}/train/", job_name="logs-1")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"algo-{machine}: line {line}" for machine in (1, 2) for line in range(3)]


def test_a_log_that_may_not_be_read_does_not_end_the_wait(
    bucket: str, aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = ("400 Bad Request", {"__type": "AccessDeniedException", "message": "no logs for you"})
    aws.fault = lambda _, operation: refusal if operation == "DescribeLogStreams" else None
    estimator(bucket).fit(f"s3://{bucket}/train/", job_name="nologs-1")
    assert capsys.readouterr().err.count("its log is not shown") == 1


def test_an_outage_does_not_end_the_wait(bucket: str, aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    """Two answers that no repetition of botocore's mends, then the job's own."""
    one = estimator(bucket)
    one.fit(f"s3://{bucket}/train/", wait=False, job_name="outage-1")
    answers = iter([("400 Bad Request", {"__type": "SomethingElse", "message": "away"})] * 2)
    aws.fault = lambda _, operation: next(answers, None) if operation == "DescribeTrainingJob" else None
    assert isinstance(one.latest_training_job, TrainingJob)
    assert one.latest_training_job.wait(60)["TrainingJobStatus"] == "Completed"
    assert capsys.readouterr().err.count("The job goes on; asking again.") == 2


def test_a_job_of_that_name_is_not_overwritten(bucket: str) -> None:
    estimator(bucket).fit(f"s3://{bucket}/train/", job_name="taken-1")
    before = objects(bucket)
    with pytest.raises(UsageError, match="There is a training job taken-1"):
        estimator(bucket, hyperparameters={"seed": 1}, entry_point=__file__, task=None).fit(
            f"s3://{bucket}/train/", job_name="taken-1"
        )
    assert objects(bucket) == before


def test_without_credentials_nothing_is_started(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    before = names()
    with pytest.raises(UsageError, match="no AWS credentials") as refused:
        estimator(bucket).fit("s3://x-bucket/train/")
    assert "aws sso login" in refused.value.hint
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        estimator(bucket).fit("s3://x-bucket/train/")
    assert names() == before


REFUSALS = [
    ("AccessDeniedException", "User x is not authorized to perform sagemaker:CreateTrainingJob", UsageError, "IAM"),
    ("ResourceLimitExceeded", "ml.p3.8xlarge for training job usage is 0 Instances", HvdtrainError, "Service Quotas"),
    ("ResourceInUse", "Training job names must be unique", UsageError, "another job name"),
    ("ValidationException", "Could not assume role", UsageError, "correct what"),
    ("ExpiredTokenException", "The security token is expired", UsageError, "sign in again"),
    ("SomethingNew", "no idea", HvdtrainError, "see the message"),
]


def test_what_aws_refuses_is_said_in_three_parts(bucket: str, aws: Aws) -> None:
    request, service, before = estimator(bucket).request(job_name="refused-1"), Service(REGION), names()
    for code, message, kind, hint in REFUSALS:
        answer = ("400 Bad Request", {"__type": code, "message": message})
        aws.fault = lambda _, operation, answer=answer: answer if operation == "CreateTrainingJob" else None
        with pytest.raises(HvdtrainError) as refused:
            service.create(request)
        assert type(refused.value) is kind
        assert refused.value.fact == f"Creating the training job refused-1 failed: {code}."
        assert message in refused.value.conflict
        assert hint in refused.value.hint
    assert names() == before


def test_a_bucket_that_is_not_there_or_not_allowed(bucket: str, aws: Aws) -> None:
    with pytest.raises(UsageError, match="NoSuchBucket") as refused:
        estimator("no-such-bucket-here").fit("s3://x-bucket/train/")
    assert "make the bucket" in refused.value.hint
    aws.fault = lambda method, _: ("403 Forbidden", {}) if method == "PUT" else None
    with pytest.raises(UsageError, match=r"Uploading sourcedir\.tar\.gz"):
        estimator(bucket).fit(f"s3://{bucket}/train/")


def test_what_is_refused_here_is_not_sent(bucket: str, aws: Aws, tmp_path: Path) -> None:
    asked: list[str] = []
    aws.fault = lambda _, operation: asked.append(operation)  # type: ignore[func-returns-value]
    train = f"s3://{bucket}/train/"
    for changes in ({"source_dir": str(tmp_path / "none")}, {"instance_type": "ml.nothing.large"}):
        with pytest.raises(UsageError):
            estimator(bucket, **changes).fit(train)
    with pytest.raises(UsageError, match="job's name is 'a_b'"):
        estimator(bucket).fit(train, job_name="a_b")
    assert asked == []


def test_no_job_has_no_model(bucket: str) -> None:
    with pytest.raises(HvdtrainError, match="call fit first"):
        _ = estimator(bucket).model_data
