"""A training job as the request that AWS's API takes: `CreateTrainingJob`.

Pure: nothing is looked up or sent. Source: Amazon SageMaker API Reference, CreateTrainingJob and the types in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel import Channel
from hvdtrain.launch.sagemaker.hyperparameters import encode, interface_variables, reserved
from hvdtrain.launch.sagemaker.spec import CHECKPOINT_FOLDER, TrainingSpec

ARCHIVE = "sourcedir.tar.gz"
MAX_VALUE = 2500
"""Characters of a hyperparameter's value: API_CreateTrainingJob, HyperParameters."""

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
    """Where the source archive goes."""
    return f"{job_folder(spec, job_name)}/source/{ARCHIVE}"


def region_of(spec: TrainingSpec, environ: Mapping[str, str]) -> str:
    """The job's region: what it says itself, that of its image, or that of the environment.

    Raises:
        UsageError: none of these names one.
    """
    if spec.region is not None:
        return spec.region
    match = _ECR_REGION.fullmatch(spec.image or "")
    found = match[1] if match else next((environ[name] for name in _REGION_VARIABLES if environ.get(name)), None)
    if found is None:
        raise UsageError(
            "The job has no region.",
            f"Neither the image {str(spec.image)[:200]!r}, which is not in ECR, nor AWS_REGION names one.",
            "give region (--region), e.g. us-east-1.",
        )
    return found


def render(spec: TrainingSpec, channels: Sequence[Channel], job_name: str, region: str) -> dict[str, Any]:
    """The request.

    Args:
        spec: the job; not a local one.
        channels: from `hvdtrain.launch.sagemaker.channels.make_channels`.
        job_name: the whole name.
        region: AWS region.

    Raises:
        UsageError: a hyperparameter that is too long.
    """
    request: dict[str, Any] = {
        "TrainingJobName": job_name,
        "RoleArn": spec.role,
        "AlgorithmSpecification": _algorithm(spec),
        "HyperParameters": _hyperparameters(spec, job_name, region),
        **_named(InputDataConfig=[_channel(channel, spec) for channel in channels] or None),
        "OutputDataConfig": _named(S3OutputPath=spec.output_path, KmsKeyId=spec.output_kms_key),
        "ResourceConfig": _named(
            InstanceType=spec.instance_type,
            InstanceCount=spec.instance_count,
            VolumeSizeInGB=spec.volume_size_gb,
            VolumeKmsKeyId=spec.volume_kms_key,
            KeepAlivePeriodInSeconds=spec.keep_alive_period_s,
        ),
        "StoppingCondition": _named(MaxRuntimeInSeconds=spec.max_run_s, MaxWaitTimeInSeconds=spec.max_wait_s),
    }
    return request | _wishes(spec)


def as_text(request: Mapping[str, Any]) -> str:
    """The request as JSON that `aws sagemaker create-training-job --cli-input-json` takes."""
    return json.dumps(request, indent=2, ensure_ascii=False) + "\n"


def _named(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _algorithm(spec: TrainingSpec) -> dict[str, Any]:
    metrics = [{"Name": name, "Regex": regex} for name, regex in spec.metric_definitions.items()]
    return _named(
        TrainingImage=spec.image,
        TrainingInputMode=spec.input_mode,
        ContainerEntrypoint=list(spec.container_entrypoint) or None,
        MetricDefinitions=metrics or None,
    )


def _hyperparameters(spec: TrainingSpec, job_name: str, region: str) -> dict[str, str]:
    own = reserved(spec, job_name, archive_uri(spec, job_name), region)
    encoded = encode({**spec.worker_hyperparameters, **own})
    for name, text in encoded.items():
        if len(text) > MAX_VALUE:
            raise UsageError(
                f"Hyperparameter {name!r} is {len(text)} characters long as JSON.",
                f"SageMaker takes {MAX_VALUE}.",
                "put it into a file in source_dir.",
            )
    return encoded


def _channel(channel: Channel, spec: TrainingSpec) -> dict[str, Any]:
    source = channel.source
    place = _named(
        S3DataType=source.s3_data_type,
        S3Uri=source.s3_data,
        S3DataDistributionType=source.distribution,
        AttributeNames=list(source.attribute_names) or None,
    )
    shuffle = None if source.shuffle_seed is None else {"Seed": source.shuffle_seed}
    return _named(
        ChannelName=channel.name,
        DataSource={"S3DataSource": place},
        ContentType=source.content_type,
        CompressionType=source.compression,
        RecordWrapperType=source.record_wrapping,
        InputMode=source.input_mode if source.input_mode != spec.input_mode else None,
        ShuffleConfig=shuffle,
    )


def _wishes(spec: TrainingSpec) -> dict[str, Any]:
    """What a job may leave out."""
    variables = {**interface_variables(spec), **spec.environment}
    checkpoints = {"S3Uri": spec.checkpoint_s3_uri, "LocalPath": CHECKPOINT_FOLDER}
    vpc = {"Subnets": list(spec.subnets), "SecurityGroupIds": list(spec.security_group_ids)}
    return _named(
        VpcConfig=vpc if spec.subnets else None,
        Tags=[{"Key": key, "Value": value} for key, value in spec.tags.items()] or None,
        EnableInterContainerTrafficEncryption=spec.encrypt_inter_container_traffic or None,
        EnableManagedSpotTraining=spec.use_spot or None,
        CheckpointConfig=checkpoints if spec.checkpoint_s3_uri is not None else None,
        Environment=variables or None,
        RetryStrategy=None if spec.max_retry_attempts is None else {"MaximumRetryAttempts": spec.max_retry_attempts},
    )
