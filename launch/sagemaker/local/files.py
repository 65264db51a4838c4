"""The folders and files of a container, written on this machine as SageMaker writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UsageError
from launch.sagemaker.container.contract import Folders
from launch.sagemaker.hyperparameters import encode, reserved
from launch.sagemaker.local.channels import LocalChannel
from launch.sagemaker.spec import TrainingSpec

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


def make_folders(folders: Folders, spec: TrainingSpec, source: Path | None) -> None:
    """All folders of a container; `code` leads to the job's source.

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
    if spec.checkpoint_s3_uri is not None:
        folders.checkpoints.mkdir(exist_ok=True)
    if source is not None and not folders.code.exists():
        folders.code.symlink_to(source, target_is_directory=True)
    folders.code.mkdir(exist_ok=True)
