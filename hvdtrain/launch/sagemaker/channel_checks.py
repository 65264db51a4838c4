"""All checks of a job's channels."""

import os
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel import NUMBERED_NAME, Channel, local_path
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import require_s3_uri

_PLAN_OPTIONS = ("data.pipe-plan", "data.pipe_plan")
_CHANNEL_FOLDERS = "/opt/ml/input/data"


def require_valid_channels(spec: TrainingSpec, channels: Sequence[Channel]) -> None:
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


def require_manifests(plan: Path, channels: Sequence[Channel]) -> None:
    for channel in channels:
        if channel.upload is None or not channel.upload.is_file():
            raise UsageError(
                f"There is no {channel.upload}.",
                f"{plan} names the channel {channel.name}, whose files it lists.",
                "make the plan again with `hvdtrain shard pipe-plan`.",
            )


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
