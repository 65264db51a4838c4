"""The channels of a job on this machine: what was given for each, found before anything is made, then laid out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.pipe_plan import read_plan
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TrainingSpec

_NUMBERED = re.compile(r".+-\d+")  # the Pipe channels, see hvdtrain.launch.sagemaker.spec
_MANIFEST = ".manifest"


@dataclass(frozen=True, slots=True)
class LocalChannel:
    """One channel.

    Attributes:
        name: of the channel.
        mode: "File", "FastFile" or "Pipe".
        folder: what all containers see as the channel's folder; None where it is made of `files`.
        files: what it delivers, in this order.
        is_divided: whether each container gets a part of the files: S3DistributionType ShardedByS3Key.
    """

    name: str
    mode: str
    folder: Path | None
    files: tuple[Path, ...] = ()
    is_divided: bool = False

    @property
    def described(self) -> dict[str, str]:
        """As in inputdataconfig.json."""
        return {
            "TrainingInputMode": self.mode,
            "S3DistributionType": "ShardedByS3Key" if self.is_divided else "FullyReplicated",
            "RecordWrapperType": "None",
        }

    def lay_out(self, folder: Path, number: int, containers: int) -> None:
        """Make `folder` show what container `number` gets; the order of files is that of their names there."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        if self.folder is not None:
            folder.symlink_to(self.folder, target_is_directory=True)
            return
        folder.mkdir()
        files = self.files[number::containers] if self.is_divided else self.files
        for place, file in enumerate(files):
            (folder / (file.name if len(files) == 1 else f"{place:06d}-{file.name}")).symlink_to(file)


def find_channels(spec: TrainingSpec, channels: Mapping[str, str]) -> list[LocalChannel]:
    """What is at the places of `channels`.

    Args:
        spec: the job.
        channels: name → folder, file, or NAME.manifest (API_S3DataSource), whose prefix is a folder here.

    Raises:
        UsageError: something is not there, or no manifest or plan.
    """
    places = {name: Path(place).expanduser().absolute() for name, place in channels.items()}
    divided = spec.instance_count > 1 and _divides(places.get(PLAN_CHANNEL))
    found = []
    for name, place in places.items():
        if _NUMBERED.fullmatch(name):
            found.append(LocalChannel(name, "Pipe", None, _files_at(place), divided))
            continue
        mode = "FastFile" if spec.input_mode == "FastFile" and name != PLAN_CHANNEL else "File"
        is_folder = place.is_dir()
        found.append(LocalChannel(name, mode, place if is_folder else None, () if is_folder else _files_at(place)))
    return found


def _divides(plan: Path | None) -> bool:
    """Whether files of Pipe channels are divided over the machines: without a plan, jobs are submitted so."""
    return plan is None or read_plan(str(plan if plan.is_dir() else plan.parent)).is_sharded


def _files_at(place: Path) -> tuple[Path, ...]:
    files: Sequence[Path]
    if place.is_dir():
        files = sorted(path for path in place.iterdir() if path.is_file())
    else:
        files = _listed(place) if place.suffix == _MANIFEST else [place]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None or not files:
        raise UsageError(
            f"There is no file {missing or f'in {place}'}.",
            "A channel of the training job is to bring it.",
            "check the path that was given for the channel.",
        )
    return tuple(files)


def _listed(manifest: Path) -> list[Path]:
    try:
        first, *keys = json.loads(manifest.read_text())
        return [Path(first["prefix"] + key).absolute() for key in keys]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"The manifest {manifest} cannot be read: {error}.",
            'It is a JSON list: {"prefix": FOLDER}, then the names of files.',
            "make it with `hvdtrain shard pipe-plan`.",
        ) from error
