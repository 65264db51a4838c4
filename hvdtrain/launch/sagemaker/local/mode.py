"""`instance_type="local"`: a training job on this machine, by the contract that its containers have on SageMaker.

Each instance becomes a folder `algo-N` with what SageMaker puts below /opt/ml, and a process that runs what an image's
`train` runs. Workers are real, pipes are FIFOs fed by `hvdtrain shard pipe-sim`; there is no image and no network.
"""

import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, with_job_token
from hvdtrain.launch.sagemaker.channel import Channel, local_path
from hvdtrain.launch.sagemaker.container.contract import JOB_VARIABLE, Folders
from hvdtrain.launch.sagemaker.hyperparameters import encode, reserved
from hvdtrain.launch.sagemaker.local.containers import ContainerSupervisor, LocalContainer, PipeFeeder
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.topology.launcher_variables import without_launcher
from hvdtrain.topology.source_address import LOOPBACK

_REGION = "local"
_SECRET_VARIABLE = "HVDTRAIN_SECRET"  # hvdtrain.comm.rendezvous: who knows it may take part

Delivered = Path | Sequence[Path]  # of a channel: a folder that all containers see, or files in this order


def run_local(spec: TrainingSpec, channels: Sequence[Channel], output_dir: Path) -> Path:
    """Run the job; returns the first container's folder, with `model/` and `output/`.

    `output_dir` gets a folder for each instance. Checkpoint locations are folders beside it, which jobs share. Raises
    UsageError: a hyperparameter, a channel or the output folder cannot be used; HvdtrainError: training failed, with
    the text that SageMaker would show as FailureReason; or a signal ended it, with exit code 75 where a later job can
    go on.
    """
    hosts = [f"algo-{number + 1}" for number in range(spec.instance_count)]
    delivered = {channel.name: _delivered(channel) for channel in channels}
    output_dir = output_dir.expanduser().absolute()
    bases = [Folders(output_dir / host) for host in hosts]
    job = f"{spec.base_job_name}-{secrets.token_hex(4)}"
    token = secrets.token_hex(16)
    for folders in bases:
        _make_folders(spec, folders, output_dir.parent)
    with ExitStack() as stack:
        is_main = threading.current_thread() is threading.main_thread()  # only there can Python take signals
        inbox = stack.enter_context(SignalInbox()) if is_main else None
        stack.enter_context(OrphanReaper(token))
        environment = {
            **without_launcher(os.environ),
            **spec.environment,
            JOB_VARIABLE: job,
            JOB_TOKEN_VARIABLE: with_job_token(os.environ, token),
        }
        if len(hosts) > 1:  # by loopback, because their names have no address
            environment |= {"MASTER_ADDR": LOOPBACK, _SECRET_VARIABLE: secrets.token_hex(16)}
        feeders = []
        for number, folders in enumerate(bases):
            _write_config(folders, spec, channels, hosts, job)
            if piped := _lay_out(folders, channels, delivered, number, len(hosts)):
                feeder = PipeFeeder(folders.data, piped, folders.base / "pipe-sim.log", environment)
                feeders.append(stack.enter_context(closing(feeder)))
        containers = [stack.enter_context(closing(LocalContainer(folders, environment))) for folders in bases]
        ContainerSupervisor(containers, feeders, spec.max_run_s, inbox).run()
    return bases[0].base


def _make_folders(spec: TrainingSpec, folders: Folders, shared: Path) -> None:
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
    if spec.checkpoint_s3_uri is not None:
        checkpoints = _checkpoint_folder(spec.checkpoint_s3_uri, shared)
        checkpoints.mkdir(parents=True, exist_ok=True)
        folders.checkpoints.symlink_to(checkpoints, target_is_directory=True)
    source = spec.source_dir
    if source is None and spec.entry_point is not None:
        source = Path(spec.entry_point).parent
    if source is not None and not folders.code.exists():
        folders.code.symlink_to(Path(source).expanduser().absolute(), target_is_directory=True)
    folders.code.mkdir(exist_ok=True)


def _checkpoint_folder(uri: str, shared: Path) -> Path:
    """The folder for a checkpoint location, the same for all jobs: checkpoints/BUCKET/KEY beside the jobs' folders."""
    if not uri.startswith("s3://"):
        return local_path(uri)
    parts = [part for part in uri.removeprefix("s3://").split("/") if part not in ("", ".", "..")]
    return shared.joinpath("checkpoints", *parts)


def _is_divided(channel: Channel) -> bool:
    """Whether each container gets a part of the files."""
    return channel.source.input_mode == "Pipe" and channel.source.distribution == "ShardedByS3Key"


def _write_config(
    folders: Folders, spec: TrainingSpec, channels: Sequence[Channel], hosts: Sequence[str], job: str
) -> None:
    """hyperparameters.json, resourceconfig.json and inputdataconfig.json of one of the containers `hosts`."""
    hyperparameters = spec.worker_hyperparameters | reserved(spec, job, str(folders.code), _REGION)
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
            "TrainingInputMode": channel.source.input_mode,
            "S3DistributionType": "ShardedByS3Key" if _is_divided(channel) else "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in channels
    }
    contents = {"hyperparameters": encode(hyperparameters), "resourceconfig": resources, "inputdataconfig": inputs}
    for name, content in contents.items():
        (folders.config / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def _lay_out(
    folders: Folders, channels: Sequence[Channel], delivered: Mapping[str, Delivered], number: int, containers: int
) -> dict[str, Path]:
    """Link the channels' files into the folders of container `number` of `containers`, so that their names keep their
    order; those for pipes where the simulator takes them. Returns the latter: name → folder."""
    piped = {}
    for channel in channels:
        folder, files = folders.data / channel.name, delivered[channel.name]
        if channel.source.input_mode == "Pipe":
            folder = piped[channel.name] = folders.base / ".feed" / channel.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(files, Path):
            folder.symlink_to(files, target_is_directory=True)
            continue
        folder.mkdir()
        files = files[number::containers] if _is_divided(channel) else files
        for place, file in enumerate(files):
            (folder / (file.name if len(files) == 1 else f"{place:06d}-{file.name}")).symlink_to(file)
    return piped


def _delivered(channel: Channel) -> Delivered:
    """The files of a channel, of a folder, a file, or NAME.manifest (API_S3DataSource) with a folder as prefix. Raises
    UsageError: something does not exist, or is not a manifest."""
    path = channel.upload or local_path(channel.source.s3_data)
    if path.is_dir():
        if channel.source.input_mode != "Pipe":
            return path
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
    return files


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
