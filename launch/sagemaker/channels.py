"""The channels of a job: what `fit` was given, made so that no two workers ever read one FIFO.

A channel in mode Pipe is one FIFO on each machine. Two workers that open it read torn records, or wait for each other
for ever; so each local rank gets a channel of its own, and SageMaker divides a channel's objects over the machines
(ShardedByS3Key). In modes File and FastFile all workers of a machine share a folder, and hvdtrain divides the records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel_checks import require_manifests, require_valid_channels
from hvdtrain.launch.sagemaker.inputs import Inputs, PipePlanInput, TrainingInput, named_inputs
from hvdtrain.launch.sagemaker.pipe_plan import PLAN_FILE, Deal, read_plan, require_fit
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TrainingSpec

PLACEHOLDER = "{local_rank}"
TRAINING_CHANNELS = ("train", "training")
"""What hvdtrain takes from pipes; all else it reads from folders."""

NUMBERED = re.compile(r"(.+)-(\d+)")
"""The name of a Pipe channel."""


@dataclass(frozen=True)
class Channel:
    """One channel.

    Attributes:
        name: of the channel.
        source: where its data are; `input_mode` and `distribution` are set.
        upload: a file of this machine that has to be at `source.s3_data` before the job starts; None: nothing.
        deal: how that file is to be made; None: it is there.
    """

    name: str
    source: TrainingInput
    upload: Path | None = None
    deal: Deal | None = None


def make_channels(spec: TrainingSpec, inputs: Inputs, upload_prefix: str, plan_folder: Path) -> tuple[Channel, ...]:
    """All channels of a job. Reads plans that are named, and nothing else.

    Args:
        spec: the job.
        inputs: what `fit` was given.
        upload_prefix: s3:// folder, without a slash at its end, for manifests and plan.
        plan_folder: where plans are going to be made that are not there yet.

    Raises:
        UsageError: more than 20 channels, Pipe channels that workers would share, a place that does not exist or cannot
            be reached from where the job runs.
    """
    channels: list[Channel] = []
    for name, source in named_inputs(inputs).items():
        if isinstance(source, PipePlanInput):
            channels += _planned(spec, source, upload_prefix)
        else:
            channels += _given(spec, name, _settled(spec, name, source), upload_prefix, plan_folder)
    require_valid_channels(spec, channels)
    return tuple(channels)


def local_channels(channels: tuple[Channel, ...]) -> dict[str, str]:
    """Name → path, for a job on this machine."""
    return {
        channel.name: str(channel.upload if channel.upload is not None else local_path(channel.source.s3_data))
        for channel in channels
    }


def local_path(place: str) -> Path:
    """The path of a file:// URI, or of what is a path already; absolute."""
    return Path(unquote(urlsplit(place).path) if place.startswith("file://") else place).expanduser().absolute()


def _given(
    spec: TrainingSpec, name: str, source: TrainingInput, upload_prefix: str, plan_folder: Path
) -> list[Channel]:
    if source.input_mode != "Pipe":
        if PLACEHOLDER in source.s3_data:
            raise UsageError(
                f"Channel {name} is {source.s3_data[:200]!r}, in mode {source.input_mode}.",
                "Only Pipe channels belong to one local rank.",
                f"leave {PLACEHOLDER} out, or use input mode Pipe.",
            )
        return [Channel(name, source)]
    if NUMBERED.fullmatch(name):
        return [Channel(name, source)]
    if PLACEHOLDER in source.s3_data:
        return [
            Channel(f"{name}-{rank}", replace(source, s3_data=source.s3_data.replace(PLACEHOLDER, str(rank))))
            for rank in range(spec.processes_per_host)
        ]
    return _dealt(spec, name, source, upload_prefix, plan_folder)


def _settled(spec: TrainingSpec, name: str, source: TrainingInput) -> TrainingInput:
    """The same with its mode and distribution decided."""
    mode = source.input_mode or _default_mode(spec, name)
    distribution = source.distribution
    if distribution is None:
        divided = mode == "Pipe" and spec.instance_count > 1
        distribution = "ShardedByS3Key" if divided else "FullyReplicated"
    if spec.task is not None and spec.instance_count > 1 and (mode == "Pipe") != (distribution == "ShardedByS3Key"):
        raise UsageError(
            f"Channel {name} is in mode {mode}, {distribution}, and the job has {spec.instance_count} machines.",
            "Machines would train on the same records."
            if mode == "Pipe"
            else "hvdtrain divides the records over all workers and needs them all on each machine.",
            "leave the distribution out.",
        )
    return replace(source, input_mode=mode, distribution=distribution)


def _default_mode(spec: TrainingSpec, name: str) -> str:
    """The job's mode; but of a task, hvdtrain takes only training data from pipes."""
    numbered = NUMBERED.fullmatch(name)
    is_training = (numbered[1] if numbered else name) in TRAINING_CHANNELS
    return "File" if spec.task is not None and spec.input_mode == "Pipe" and not is_training else spec.input_mode


def _dealt(
    spec: TrainingSpec, name: str, source: TrainingInput, upload_prefix: str, plan_folder: Path
) -> list[Channel]:
    """A channel for each local rank, whose manifest is made from the files at the channel's place."""
    if source.s3_data_type != "S3Prefix":
        raise UsageError(
            f"Channel {name} is a {source.s3_data_type} in mode Pipe.",
            "The files that it lists would all go through one FIFO, and each worker needs its own.",
            f"give a list for each local rank, as channels {name}-0, {name}-1, ..., or a plan (PipePlanInput).",
        )
    deal = Deal(name, source.s3_data, source.content_type, plan_folder / name)
    channels = [
        _manifest(f"{name}-{rank}", source, upload_prefix, deal.folder, deal) for rank in range(spec.processes_per_host)
    ]
    return [*channels, *([_plan(upload_prefix, deal.folder, deal)] if spec.task is not None else [])]


def _planned(spec: TrainingSpec, source: PipePlanInput, upload_prefix: str) -> list[Channel]:
    plan = read_plan(source.folder)
    require_fit(spec, plan)
    divided = plan.is_sharded and spec.instance_count > 1
    pipe = TrainingInput(
        plan.prefix,
        distribution="ShardedByS3Key" if divided else "FullyReplicated",
        input_mode="Pipe",
        shuffle_seed=source.shuffle_seed,
    )
    channels = [_manifest(name, pipe, upload_prefix, plan.path.parent) for name in plan.channels]
    require_manifests(plan.path, channels)
    return [*channels, _plan(upload_prefix, plan.path.parent)]


def _manifest(name: str, source: TrainingInput, prefix: str, folder: Path, deal: Deal | None = None) -> Channel:
    listed = replace(source, s3_data=f"{prefix}/{name}.manifest", s3_data_type="ManifestFile")
    return Channel(name, listed, folder / f"{name}.manifest", deal)


def _plan(prefix: str, folder: Path, deal: Deal | None = None) -> Channel:
    source = TrainingInput(f"{prefix}/{PLAN_FILE}", "FullyReplicated", input_mode="File")
    return Channel(PLAN_CHANNEL, source, folder / PLAN_FILE, deal)
