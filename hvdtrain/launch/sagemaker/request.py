"""A training job as the request that AWS's API takes, `CreateTrainingJob`, and as notes for people.

Pure: nothing is looked up or sent. Source: Amazon SageMaker API Reference, CreateTrainingJob and the types in it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.rendering import Note
from hvdtrain.launch.sagemaker.channel import Channel
from hvdtrain.launch.sagemaker.hyperparameters import encode, interface_variables, reserved
from hvdtrain.launch.sagemaker.spec import CHECKPOINT_FOLDER, TrainingSpec

ARCHIVE = "sourcedir.tar.gz"

_SECRET = re.compile(
    r"(.*_)?(SECRETS?|TOKEN|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)", re.IGNORECASE
)
_ECR_REGION = re.compile(r"\d{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?/.+")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def new_job_name(spec: TrainingSpec, now: datetime | None = None) -> str:
    """A name that no earlier job has: base name and time, in UTC to the millisecond, as SageMaker's SDK makes it."""
    now = now or datetime.now(UTC)
    return f"{spec.base_job_name}-{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03d}"


def job_folder(spec: TrainingSpec, job_name: str) -> str:
    """The job's own folder in S3, without a slash at its end; also SageMaker puts the model there."""
    return f"{str(spec.output_path).rstrip('/')}/{job_name}"


def archive_uri(spec: TrainingSpec, job_name: str) -> str:
    return f"{job_folder(spec, job_name)}/source/{ARCHIVE}"


def region_of(spec: TrainingSpec, environ: Mapping[str, str]) -> str:
    """The region that the job itself names, or its image, or the environment; UsageError if none of these does."""
    if spec.region is not None:
        return spec.region
    match = _ECR_REGION.fullmatch(spec.image or "")
    region = match[1] if match else next((environ[name] for name in _REGION_VARIABLES if environ.get(name)), None)
    if region is None:
        raise UsageError(
            "The job has no region.",
            f"Neither the image {str(spec.image)[:200]!r}, which is not in ECR, nor AWS_REGION names one.",
            "give region (--region), e.g. us-east-1.",
        )
    return region


def render(spec: TrainingSpec, channels: Sequence[Channel], job_name: str, region: str) -> dict[str, Any]:
    of_sagemaker = reserved(spec, job_name, archive_uri(spec, job_name), region)
    metrics = [{"Name": name, "Regex": regex} for name, regex in spec.metric_definitions.items()]
    variables = {**interface_variables(spec), **spec.environment}
    vpc = {"Subnets": list(spec.subnets), "SecurityGroupIds": list(spec.security_group_ids)}
    checkpoints = {"S3Uri": spec.checkpoint_s3_uri, "LocalPath": CHECKPOINT_FOLDER}
    return _present(
        TrainingJobName=job_name,
        RoleArn=spec.role,
        AlgorithmSpecification=_present(
            TrainingImage=spec.image,
            TrainingInputMode=spec.input_mode,
            ContainerEntrypoint=list(spec.container_entrypoint) or None,
            MetricDefinitions=metrics or None,
        ),
        HyperParameters=encode({**spec.worker_hyperparameters, **of_sagemaker}),
        InputDataConfig=[_channel(channel, spec) for channel in channels] or None,
        OutputDataConfig=_present(S3OutputPath=spec.output_path, KmsKeyId=spec.output_kms_key),
        ResourceConfig=_present(
            InstanceType=spec.instance_type,
            InstanceCount=spec.instance_count,
            VolumeSizeInGB=spec.volume_size_gb,
            VolumeKmsKeyId=spec.volume_kms_key,
            KeepAlivePeriodInSeconds=spec.keep_alive_period_s,
        ),
        StoppingCondition=_present(MaxRuntimeInSeconds=spec.max_run_s, MaxWaitTimeInSeconds=spec.max_wait_s),
        VpcConfig=vpc if spec.subnets or spec.security_group_ids else None,
        Tags=[{"Key": key, "Value": value} for key, value in spec.tags.items()] or None,
        EnableInterContainerTrafficEncryption=spec.encrypt_inter_container_traffic or None,
        EnableManagedSpotTraining=spec.use_spot or None,
        CheckpointConfig=checkpoints if spec.checkpoint_s3_uri is not None else None,
        Environment=variables or None,
        RetryStrategy=None if spec.max_retry_attempts is None else {"MaximumRetryAttempts": spec.max_retry_attempts},
    )


def as_text(request: Mapping[str, Any]) -> str:
    """The request as JSON that `aws sagemaker create-training-job --cli-input-json` takes."""
    return json.dumps(request, indent=2, ensure_ascii=False) + "\n"


def secret_names(names: Iterable[str]) -> list[str]:
    """Names of variables that sound as if their values were secret."""
    return [name for name in names if _SECRET.fullmatch(name)]


def notes(spec: TrainingSpec, channels: Sequence[Channel], job_name: str, compared: str | None) -> tuple[Note, ...]:
    """(what, why) of each choice that a reader may wonder about; `compared` from `require_valid_request`."""
    machines = f"{spec.instance_count} machine{'s' if spec.instance_count > 1 else ''}"
    started = "by mpirun" if spec.mpi_enabled else "without MPI"
    source = f"{f'the files of {spec.source_dir} and ' if spec.source_dir is not None else ''}{spec.program}"
    lines = [
        ("workers", f"{spec.size} on {machines}, {spec.processes_per_host} on each, started {started}"),
        ("source", f"{ARCHIVE} with {source}, to {archive_uri(spec, job_name)}"),
        *(_channel_note(spec, channel) for channel in channels),
        ("request", f"compared with {compared}" if compared else "not compared: botocore is not installed"),
    ]
    if spec.environment:
        lines.append(("environment", "whoever may see the job sees the values: no secrets"))
        lines += [(f"environment {name}", "looks like a secret") for name in secret_names(spec.environment)]
    return tuple(lines)


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _channel(channel: Channel, spec: TrainingSpec) -> dict[str, Any]:
    source = channel.source
    location = _present(
        S3DataType=source.s3_data_type,
        S3Uri=source.s3_data,
        S3DataDistributionType=source.distribution,
        AttributeNames=list(source.attribute_names) or None,
    )
    shuffle = None if source.shuffle_seed is None else {"Seed": source.shuffle_seed}
    return _present(
        ChannelName=channel.name,
        DataSource={"S3DataSource": location},
        ContentType=source.content_type,
        CompressionType=source.compression,
        RecordWrapperType=source.record_wrapping,
        InputMode=source.input_mode if source.input_mode != spec.input_mode else None,
        ShuffleConfig=shuffle,
    )


def _channel_note(spec: TrainingSpec, channel: Channel) -> Note:
    modes = {
        "Pipe": "a FIFO that one worker of each machine reads",
        "FastFile": "a folder, whose files are fetched while they are read",
    }
    divided = "all of it on each machine (FullyReplicated)"
    if spec.instance_count == 1:
        divided = "all of it, there is one machine"
    elif channel.source.distribution == "ShardedByS3Key":
        divided = "SageMaker divides the objects over the machines (ShardedByS3Key)"
    text = f"{modes.get(channel.source.input_mode or '', 'a folder')}; {divided}"
    if channel.upload is not None:
        made = f"made from the files at {channel.data_location}" if channel.pending_plan is not None else "uploaded"
        text += f"; {channel.upload.name} will be {made}"
    return f"channel {channel.name}", text
