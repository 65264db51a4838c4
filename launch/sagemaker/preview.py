"""What people are told of a job before it starts: what goes where, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hvdtrain.launch.sagemaker.channel import Channel
from hvdtrain.launch.sagemaker.request import ARCHIVE, archive_uri
from hvdtrain.launch.sagemaker.spec import TrainingSpec

Note = tuple[str, str]

_SECRET = re.compile(
    r"(.*_)?(SECRETS?|TOKEN|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)", re.IGNORECASE
)


def secret_names(names: Iterable[str]) -> list[str]:
    """Names of variables that sound as if their values were secret."""
    return [name for name in names if _SECRET.fullmatch(name)]


def notes(spec: TrainingSpec, channels: Sequence[Channel], job_name: str, compared: str | None) -> tuple[Note, ...]:
    """(what, why) of each choice that a reader may wonder about.

    Args:
        spec: the job.
        channels: its channels.
        job_name: the whole name.
        compared: what the request was compared with; None: nothing.
    """
    machines = f"{spec.instance_count} machine{'s' if spec.instance_count > 1 else ''}"
    found = [
        ("workers", f"{spec.size} on {machines}, {spec.processes_per_host} on each, {_starter(spec)}"),
        ("source", f"{ARCHIVE} with {_contents(spec)}, to {archive_uri(spec, job_name)}"),
        *(_channel_note(spec, channel) for channel in channels),
        ("request", f"compared with {compared}" if compared else "not compared: botocore is not installed"),
    ]
    if spec.environment:
        found.append(("environment", "whoever may see the job sees the values: no secrets"))
        found += [(f"environment {name}", "looks like a secret") for name in secret_names(spec.environment)]
    return tuple(found)


def _starter(spec: TrainingSpec) -> str:
    return "started by mpirun" if spec.mpi_enabled else "started without MPI"


def _contents(spec: TrainingSpec) -> str:
    files = f"the files of {spec.source_dir}" if spec.source_dir is not None else ""
    return " and ".join(text for text in (files, spec.program) if text)


def _channel_note(spec: TrainingSpec, channel: Channel) -> Note:
    source = channel.source
    mode = {
        "Pipe": "a FIFO that one worker of each machine reads",
        "FastFile": "a folder, whose files are fetched while they are read",
    }.get(source.input_mode or "", "a folder")
    text = f"{mode}; {_distribution(spec, source.distribution)}"
    if channel.pending_plan is not None and channel.upload is not None:
        text += f"; {channel.upload.name} will be made from the files at {channel.pending_plan.location}"
    elif channel.upload is not None:
        text += f"; {channel.upload.name} will be uploaded"
    return f"channel {channel.name}", text


def _distribution(spec: TrainingSpec, distribution: str | None) -> str:
    if spec.instance_count == 1:
        return "all of it, there is one machine"
    if distribution == "ShardedByS3Key":
        return "SageMaker divides the objects over the machines (ShardedByS3Key)"
    return "all of it on each machine (FullyReplicated)"
