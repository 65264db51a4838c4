"""The folders and files of a container, written on this machine as SageMaker writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.channel_checks import local_path
from hvdtrain.launch.sagemaker.container.contract import Folders
from hvdtrain.launch.sagemaker.hyperparameters import encode, reserved
from hvdtrain.launch.sagemaker.local.channels import LocalChannel
from hvdtrain.launch.sagemaker.spec import TrainingSpec

LOCAL_REGION = "local"


def write_config(
    folders: Folders, spec: TrainingSpec, channels: Sequence[LocalChannel], hosts: Sequence[str], host: str, job: str
) -> None:
    """hyperparameters.json, resourceconfig.json and inputdataconfig.json of the container `host`."""
    own = spec.worker_hyperparameters | reserved(spec, job, str(folders.code), LOCAL_REGION)
    if spec.entry_point is not None and spec.source_dir is None:
        own["sagemaker_program"] = Path(spec.entry_point).name
    group = "homogeneousCluster"
    resources = {
        "current_host": host,
        "current_instance_type": spec.instance_type,
        "current_group_name": group,
        "hosts": list(hosts),
        "instance_groups": [{"instance_group_name": group, "instance_type": spec.instance_type, "hosts": list(hosts)}],
        "network_interface_name": "lo",
    }
    inputs = {channel.name: channel.described for channel in channels}
    for name, content in (
        ("hyperparameters", encode(own)),
        ("resourceconfig", resources),
        ("inputdataconfig", inputs),
    ):
        (folders.config / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def checkpoint_folder(uri: str, beside: Path) -> Path:
    """The folder on this machine that stands for a checkpoint location: the same for all jobs that name it.

    Args:
        uri: s3://BUCKET/KEY, which becomes checkpoints/BUCKET/KEY in `beside`; or a folder.
        beside: the folder that jobs share.
    """
    if not uri.startswith("s3://"):
        return local_path(uri)
    parts = [part for part in uri.removeprefix("s3://").split("/") if part not in ("", ".", "..")]
    return beside.joinpath("checkpoints", *parts)


def make_folders(folders: Folders, checkpoints: Path | None, source: Path | None) -> None:
    """All folders of a container; `code` leads to the job's source, `checkpoints` to the job's checkpoint location.

    Raises:
        UsageError: another job has left something there.
    """
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
