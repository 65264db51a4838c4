"""The folders of a job's containers on this machine, with channels and config files as SageMaker lays them out."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel import NUMBERED_NAME, local_path
from hvdtrain.launch.sagemaker.container.contract import Folders
from hvdtrain.launch.sagemaker.hyperparameters import encode, reserved
from hvdtrain.launch.sagemaker.pipe_plan import is_sharded, read_plan
from hvdtrain.launch.sagemaker.spec import PLAN_CHANNEL, TrainingSpec

LOCAL_REGION = "local"


@dataclass(frozen=True, slots=True)
class LocalChannel:
    """One channel."""

    name: str
    mode: str  # "File", "FastFile" or "Pipe"
    folder: Path | None  # what all containers see as the channel's folder; None where it is made of `files`
    files: tuple[Path, ...] = ()  # what it delivers, in this order
    is_divided: bool = False  # whether each container gets a part of the files: S3DistributionType ShardedByS3Key

    def lay_out(self, folder: Path, container: int, containers: int) -> None:
        """Link the files of container number `container` into `folder`, so that their names keep their order."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        if self.folder is not None:
            folder.symlink_to(self.folder, target_is_directory=True)
            return
        folder.mkdir()
        files = self.files[container::containers] if self.is_divided else self.files
        for number, file in enumerate(files):
            (folder / (file.name if len(files) == 1 else f"{number:06d}-{file.name}")).symlink_to(file)


def find_channels(spec: TrainingSpec, channels: Mapping[str, str]) -> list[LocalChannel]:
    """The files of each channel: its name → folder, file, or NAME.manifest (API_S3DataSource) with a folder as prefix.
    Raises UsageError: something does not exist, or is not a manifest or plan."""
    paths = {name: Path(path).expanduser().absolute() for name, path in channels.items()}
    is_divided, plan = spec.instance_count > 1, paths.get(PLAN_CHANNEL)
    if is_divided and plan is not None:  # without a plan, jobs are submitted with divided channels
        is_divided = is_sharded(read_plan(str(plan if plan.is_dir() else plan.parent)))
    local_channels = []
    for name, path in paths.items():
        is_pipe = NUMBERED_NAME.fullmatch(name) is not None
        mode = "Pipe" if is_pipe else "FastFile" if spec.input_mode == "FastFile" and name != PLAN_CHANNEL else "File"
        folder = path if path.is_dir() and not is_pipe else None
        files = _files_at(path) if folder is None else ()
        local_channels.append(LocalChannel(name, mode, folder, files, is_divided=is_pipe and is_divided))
    return local_channels


def write_config(
    folders: Folders, spec: TrainingSpec, channels: Sequence[LocalChannel], hosts: Sequence[str], job: str
) -> None:
    """hyperparameters.json, resourceconfig.json and inputdataconfig.json of one of the containers `hosts`."""
    hyperparameters = spec.worker_hyperparameters | reserved(spec, job, str(folders.code), LOCAL_REGION)
    group = "homogeneousCluster"
    resources = {
        "current_host": folders.base.name,
        "current_instance_type": spec.instance_type,
        "current_group_name": group,
        "hosts": list(hosts),
        "instance_groups": [{"instance_group_name": group, "instance_type": spec.instance_type, "hosts": list(hosts)}],
        "network_interface_name": "lo",
    }
    inputs = {
        channel.name: {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": "ShardedByS3Key" if channel.is_divided else "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in channels
    }
    contents = {"hyperparameters": encode(hyperparameters), "resourceconfig": resources, "inputdataconfig": inputs}
    for name, content in contents.items():
        (folders.config / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def checkpoint_folder(uri: str, shared: Path) -> Path:
    """The folder for a checkpoint location, the same for all jobs: checkpoints/BUCKET/KEY beside the jobs' folders."""
    if not uri.startswith("s3://"):
        return local_path(uri)
    parts = [part for part in uri.removeprefix("s3://").split("/") if part not in ("", ".", "..")]
    return shared.joinpath("checkpoints", *parts)


def require_writable(folder: Path) -> None:
    try:
        for path in (folder, *folder.parents):
            with suppress(FileNotFoundError):
                path.lstat()
                break
        tempfile.TemporaryDirectory(prefix=".hvdtrain-", dir=path).cleanup()
    except OSError as error:
        raise UsageError(
            f"The output folder {folder} cannot be written to: {error.strerror}.",
            "The job's model and output go there.",
            "choose another output_path (--output-path).",
        ) from error


def make_folders(folders: Folders, checkpoints: Path | None, source: Path | None) -> None:
    """All folders of a container; `code` leads to the job's source, `checkpoints` to the job's checkpoint location.
    Raises UsageError: another job has left something there."""
    if folders.output.exists() or folders.model.exists():
        raise UsageError(
            f"{folders.base} holds a training job already.",
            "Its model and its failure would be mixed with this job's.",
            "choose another output folder, or remove that one.",
        )
    for folder in (folders.config, folders.data, folders.model, folders.output / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        folders.checkpoints.symlink_to(checkpoints, target_is_directory=True)
    if source is not None and not folders.code.exists():
        folders.code.symlink_to(source, target_is_directory=True)
    folders.code.mkdir(exist_ok=True)


def _files_at(path: Path) -> tuple[Path, ...]:
    files: Sequence[Path]
    if path.is_dir():
        files = sorted(path for path in path.iterdir() if path.is_file())
    else:
        files = _listed(path) if path.suffix == ".manifest" else [path]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None or not files:
        raise UsageError(
            f"There is no file {missing or f'in {path}'}.",
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
