"""`instance_type="local"`: a training job on this machine, by the contract that its containers have on SageMaker.

Each instance becomes a folder `algo-N` with what SageMaker puts below /opt/ml, and a process that runs what an image's
`train` runs. Workers are real, pipes are FIFOs fed by `hvdtrain shard pipe-sim`; there is no image and no network.
"""

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, with_job_token
from hvdtrain.launch.sagemaker.container.contract import JOB_VARIABLE, Folders
from hvdtrain.launch.sagemaker.local.containers import ContainerSupervisor, LocalContainer, PipeFeeder
from hvdtrain.launch.sagemaker.local.folders import (
    LocalChannel,
    checkpoint_folder,
    find_channels,
    make_folders,
    write_config,
)
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.topology.launcher_variables import without_launcher

_LOOPBACK = "127.0.0.1"
_SECRET_VARIABLE = "HVDTRAIN_SECRET"  # hvdtrain.comm.rendezvous: who knows it may take part


def run_local(spec: TrainingSpec, channels: Mapping[str, str], output_dir: Path) -> Path:
    """Run the job; returns the first container's folder, with `model/` and `output/`.

    `channels` maps a name, which ends in a number in mode Pipe, to a folder, a file, or NAME.manifest. `output_dir`
    gets a folder for each instance. Checkpoint locations are folders beside it, which jobs share. Raises UsageError: a
    hyperparameter, a channel or the output folder cannot be used; HvdtrainError: training failed, with the text that
    SageMaker would show as FailureReason; or a signal ended it, with exit code 75 where a later job can go on.
    """
    hosts = [f"algo-{number + 1}" for number in range(spec.instance_count)]
    local_channels = find_channels(spec, channels)
    output_dir = output_dir.expanduser().absolute()
    bases = [Folders(output_dir / host) for host in hosts]
    job = f"{spec.base_job_name}-{secrets.token_hex(4)}"
    token = secrets.token_hex(16)
    _make_all_folders(spec, bases, output_dir.parent)
    with ExitStack() as stack:
        is_main = threading.current_thread() is threading.main_thread()  # only there can Python take signals
        inbox = stack.enter_context(SignalInbox()) if is_main else None
        stack.enter_context(OrphanReaper(token))
        environment = _environment(spec, job, token)
        feeders = []
        for number, folders in enumerate(bases):
            write_config(folders, spec, local_channels, hosts, job)
            if piped := _lay_out(folders, local_channels, number, len(hosts)):
                feeder = PipeFeeder(folders.data, piped, folders.base / "pipe-sim.log", environment)
                feeders.append(stack.enter_context(closing(feeder)))
        containers = [stack.enter_context(closing(LocalContainer(folders, environment))) for folders in bases]
        ContainerSupervisor(containers, feeders, spec.max_run_s, inbox).run()
    return bases[0].base


def _environment(spec: TrainingSpec, job: str, token: str) -> dict[str, str]:
    """What all containers have in common. Several containers use loopback, because their names have no address."""
    meeting = {"MASTER_ADDR": _LOOPBACK, _SECRET_VARIABLE: secrets.token_hex(16)} if spec.instance_count > 1 else {}
    marks = {JOB_VARIABLE: job, JOB_TOKEN_VARIABLE: with_job_token(os.environ, token)}
    return {**without_launcher(os.environ), **spec.environment, **meeting, **marks}


def _make_all_folders(spec: TrainingSpec, bases: Sequence[Folders], shared: Path) -> None:
    source = spec.source_dir
    if source is None and spec.entry_point is not None:
        source = Path(spec.entry_point).parent
    source = None if source is None else Path(source).expanduser().absolute()
    uri = spec.checkpoint_s3_uri
    for folders in bases:
        make_folders(folders, None if uri is None else checkpoint_folder(uri, shared), source)


def _lay_out(folders: Folders, channels: Sequence[LocalChannel], number: int, hosts: int) -> dict[str, Path]:
    """Put the channels' files into their folders, and those for pipes where the simulator takes them: name → folder."""
    piped = {}
    for channel in channels:
        folder = (folders.base / ".feed" if channel.mode == "Pipe" else folders.data) / channel.name
        channel.lay_out(folder, number, hosts)
        if channel.mode == "Pipe":
            piped[channel.name] = folder
    return piped
