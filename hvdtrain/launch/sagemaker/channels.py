"""The channels of a job: what `fit` was given, made so that no two workers ever read one FIFO.

A channel in mode Pipe is one FIFO on each machine. Two workers that open it read torn records, or wait for each other
for ever; so each local rank gets a channel of its own, and SageMaker divides a channel's objects over the machines
(ShardedByS3Key). In modes File and FastFile all workers of a machine share a folder, and hvdtrain divides the records.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel import (
    NUMBERED_NAME,
    Channel,
    Inputs,
    PipePlanInput,
    TrainingInput,
    local_path,
    named_inputs,
)
from hvdtrain.launch.sagemaker.pipe_plan import (
    PLAN_FILE,
    PendingPipePlan,
    is_sharded,
    make_plan,
    read_plan,
    require_fit,
)
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import require_s3_uri

PLACEHOLDER = "{local_rank}"
TRAINING_CHANNELS = ("train", "training")  # what hvdtrain takes from pipes; all else it reads from folders
_PLAN_OPTIONS = ("data.pipe-plan", "data.pipe_plan")
_CHANNEL_FOLDERS = "/opt/ml/input/data"


def make_channels(spec: TrainingSpec, inputs: Inputs, upload_prefix: str, plan_folder: Path) -> tuple[Channel, ...]:
    """All channels of a job. Reads plans that are named, and nothing else.

    Manifests and plan go to the s3:// folder `upload_prefix`, which has no slash at its end; plans that are not there
    yet are going to be made in `plan_folder`. Raises UsageError: more than 20 channels, Pipe channels that workers
    would share, or a location that does not exist or cannot be reached from where the job runs.
    """
    channels: list[Channel] = []
    for name, source in named_inputs(inputs).items():
        if isinstance(source, PipePlanInput):
            channels += _of_plan(spec, source, upload_prefix)
        else:
            channels += _given(spec, name, _resolved(spec, name, source), upload_prefix, plan_folder)
    _require_valid(spec, channels)
    return tuple(channels)


def make_plans(spec: TrainingSpec, channels: Iterable[Channel]) -> None:
    plans = {each.pending_plan.folder: each.pending_plan for each in channels if each.pending_plan is not None}
    for plan in plans.values():
        make_plan(spec, plan)


def _given(
    spec: TrainingSpec, name: str, source: TrainingInput, upload_prefix: str, plan_folder: Path
) -> list[Channel]:
    if source.input_mode != "Pipe" and PLACEHOLDER in source.s3_data:
        raise UsageError(
            f"Channel {name} is {source.s3_data[:200]!r}, in mode {source.input_mode}.",
            "Only Pipe channels belong to one local rank.",
            f"leave {PLACEHOLDER} out, or use input mode Pipe.",
        )
    if source.input_mode != "Pipe" or NUMBERED_NAME.fullmatch(name):
        return [Channel(name, source)]
    if PLACEHOLDER in source.s3_data:
        return [
            Channel(f"{name}-{rank}", replace(source, s3_data=source.s3_data.replace(PLACEHOLDER, str(rank))))
            for rank in range(spec.processes_per_host)
        ]
    return _divided(spec, name, source, upload_prefix, plan_folder)


def _resolved(spec: TrainingSpec, name: str, source: TrainingInput) -> TrainingInput:
    """The same with its mode and distribution decided."""
    mode = source.input_mode or spec.input_mode
    if source.input_mode is None and spec.task is not None and mode == "Pipe":
        numbered = NUMBERED_NAME.fullmatch(name)  # of a task, hvdtrain takes only training data from pipes
        mode = "Pipe" if (numbered[1] if numbered else name) in TRAINING_CHANNELS else "File"
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


def _divided(
    spec: TrainingSpec, name: str, source: TrainingInput, upload_prefix: str, plan_folder: Path
) -> list[Channel]:
    """A channel for each local rank, whose manifest is made from the files at the channel's location."""
    if source.s3_data_type != "S3Prefix":
        raise UsageError(
            f"Channel {name} is a {source.s3_data_type} in mode Pipe.",
            "The files that it lists would all go through one FIFO, and each worker needs its own.",
            f"give a list for each local rank, as channels {name}-0, {name}-1, ..., or a plan (PipePlanInput).",
        )
    plan = PendingPipePlan(name, source.s3_data, source.content_type, plan_folder / name)
    names = [f"{name}-{rank}" for rank in range(spec.processes_per_host)]
    channels = _planned_channels(names, source, upload_prefix, plan.folder)
    return [replace(each, pending_plan=plan) for each in (channels if spec.task is not None else channels[:-1])]


def _of_plan(spec: TrainingSpec, source: PipePlanInput, upload_prefix: str) -> list[Channel]:
    plan, folder = read_plan(source.folder), Path(source.folder).expanduser().absolute()
    require_fit(spec, plan, source.folder)
    distribution = "ShardedByS3Key" if is_sharded(plan) and spec.instance_count > 1 else "FullyReplicated"
    pipe = TrainingInput(plan.prefix, distribution, input_mode="Pipe", shuffle_seed=source.shuffle_seed)
    channels = _planned_channels([channel.name for channel in plan.channels], pipe, upload_prefix, folder)
    for channel in channels[:-1]:
        if channel.upload is None or not channel.upload.is_file():
            raise UsageError(
                f"There is no {channel.upload}.",
                f"{folder / PLAN_FILE} names the channel {channel.name}, whose files it lists.",
                "make the plan again with `hvdtrain shard pipe-plan`.",
            )
    return channels


def _planned_channels(names: Iterable[str], pipe: TrainingInput, prefix: str, folder: Path) -> list[Channel]:
    """The channels of a plan in `folder`, each with its manifest, and the one that brings the plan itself."""
    channels = [
        Channel(
            name,
            replace(pipe, s3_data=f"{prefix}/{name}.manifest", s3_data_type="ManifestFile"),
            folder / f"{name}.manifest",
        )
        for name in names
    ]
    plan = TrainingInput(f"{prefix}/{PLAN_FILE}", "FullyReplicated", input_mode="File")
    return [*channels, Channel(PLAN_CHANNEL, plan, folder / PLAN_FILE)]


def _require_valid(spec: TrainingSpec, channels: Sequence[Channel]) -> None:
    """Raise UsageError for the first thing about the channels that cannot be."""
    names = [channel.name for channel in channels]
    pipes = [channel.name for channel in channels if channel.source.input_mode == "Pipe"]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two channels are called {twice}.", "Each has a folder or FIFO of its name.", "rename one.")
    _require_numbers_for_pipes_only(spec, channels)
    _require_plan(spec, names, pipes)
    _require_readers(spec, names, pipes)
    _require_data_of_channels(spec, names)
    for channel in channels:
        if spec.is_local:
            _require_local(channel)
        else:
            require_s3_uri(f"Channel {channel.name}", channel.data_location)


def _require_data_of_channels(spec: TrainingSpec, names: Sequence[str]) -> None:
    folder = str(spec.hyperparameters.get("data.dir", _CHANNEL_FOLDERS))
    if spec.task is not None and names and not folder.startswith(_CHANNEL_FOLDERS):
        raise UsageError(
            f"--data.dir is {folder[:200]!r}, and the job has channels ({', '.join(names)}).",
            "The data would be looked for there, and the channels never read.",
            f"leave --data.dir out: it is set to the channel's folder, below {_CHANNEL_FOLDERS}.",
        )


def _require_numbers_for_pipes_only(spec: TrainingSpec, channels: Sequence[Channel]) -> None:
    for channel in channels if spec.input_mode == "Pipe" or spec.is_local else ():
        mode = channel.source.input_mode
        if mode != "Pipe" and NUMBERED_NAME.fullmatch(channel.name):
            raise UsageError(
                f"Channel {channel.name} is in mode {mode}.",
                "In jobs of mode Pipe and jobs on this machine, names that end in a number belong to Pipe channels.",
                "give it a name without a number.",
            )


def _require_readers(spec: TrainingSpec, names: Sequence[str], pipes: Sequence[str]) -> None:
    """Pipe channels must be one for each local rank, or, where a plan says so, one for each worker of the job."""
    groups: dict[str, set[int]] = {}
    for match in filter(None, map(NUMBERED_NAME.fullmatch, pipes)):
        groups.setdefault(match[1], set()).add(int(match[2]))
    counts = {spec.processes_per_host, *([spec.size] if PLAN_CHANNEL in names else [])}
    for name, numbers in groups.items():
        if numbers not in [set(range(count)) for count in counts]:
            raise UsageError(
                f"There are channels {', '.join(f'{name}-{number}' for number in sorted(numbers))}.",
                f"Each machine has {spec.processes_per_host} workers, and each of them a channel of its own.",
                f"give {', '.join(f'{name}-{number}' for number in range(spec.processes_per_host))}.",
            )


def _require_plan(spec: TrainingSpec, names: Sequence[str], pipes: Sequence[str]) -> None:
    has_plan = PLAN_CHANNEL in names or any(name in spec.hyperparameters for name in _PLAN_OPTIONS)
    if spec.task is not None and pipes and not has_plan:
        raise UsageError(
            f"Channels {', '.join(pipes)} bring training data through pipes, without a plan.",
            "hvdtrain needs to know who reads which channel, and how many records come.",
            "give one channel without a number or {local_rank}, such as train=PLACE, which is then divided over "
            "workers, or a plan that `hvdtrain shard pipe-plan` made (PipePlanInput, --pipe-plan).",
        )


def _require_local(channel: Channel) -> None:
    location = channel.data_location
    if channel.upload is not None and channel.pending_plan is None:
        return
    if "://" in location and not location.startswith("file://"):
        raise UsageError(
            f"Channel {channel.name} is {location[:200]!r}.",
            "A job on this machine reads files of this machine.",
            "copy the data here (`aws s3 sync`), and give the path.",
        )
    if not os.path.exists(local_path(location)):  # noqa: PTH110 - of a folder that is closed to us, Path's raises
        raise UsageError(
            f"Channel {channel.name} is {local_path(location)}.",
            "There is no such file or folder, or you may not look at it.",
            "check the path.",
        )
