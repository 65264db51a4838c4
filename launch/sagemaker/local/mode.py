"""`instance_type="local"`: a training job on this machine, by the contract that its containers have on SageMaker.

Each instance becomes a folder `algo-N` with what SageMaker puts below /opt/ml, and a process that runs what an image's
`train` runs. Workers are real, pipes are FIFOs fed by `hvdtrain shard pipe-sim`; there is no image and no network.
"""

from __future__ import annotations

import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, final

from hvdtrain.errors import HvdtrainError, UsageError
from launch.processes.guard import MARK_VARIABLE, Guard, marked
from launch.sagemaker.container.contract import BASE_VARIABLE, JOB_VARIABLE, Folders
from launch.sagemaker.container.environment import without_launcher
from launch.sagemaker.container.workers import GRACE_SECONDS
from launch.sagemaker.failure import FILE
from launch.sagemaker.local.channels import LocalChannel, find_channels
from launch.sagemaker.local.files import make_folders, write_config
from launch.sagemaker.local.pipes import PipeFeeder
from launch.sagemaker.spec import TrainingSpec

_LOOPBACK = "127.0.0.1"
_OTHERS_SECONDS = 15.0  # that containers may still run after one has failed: SageMaker ends them, too
_LOOK_SECONDS = 1.0  # between two looks at the simulators
_END_SECONDS = GRACE_SECONDS + 20.0  # SIGTERM to SIGKILL, as SageMaker has it


def run_local(spec: TrainingSpec, channels: Mapping[str, str], output_dir: Path) -> Path:
    """Run the job; returns the first container's folder, with `model/` and `output/`.

    Args:
        spec: what to train.
        channels: name → folder, file, or NAME.manifest; those of mode Pipe end in a number.
        output_dir: gets a folder for each instance.

    Raises:
        UsageError: a hyperparameter, a channel or the output folder cannot be used.
        HvdtrainError: training failed; with the text that SageMaker would show as FailureReason.
    """
    hosts = [f"algo-{number + 1}" for number in range(spec.instance_count)]
    found = find_channels(spec, channels)
    bases = [Folders(output_dir.expanduser().absolute() / host) for host in hosts]
    job = f"{spec.base_job_name}-{secrets.token_hex(4)}"
    mark = secrets.token_hex(16)
    source = Path(spec.source_dir).expanduser().absolute() if spec.source_dir is not None else _beside(spec)
    for folders in bases:
        make_folders(folders, spec, source)
    with Guard(mark), ExitStack() as stack:
        feeders = []
        for number, (folders, host) in enumerate(zip(bases, hosts, strict=True)):
            write_config(folders, spec, found, hosts, host, job)
            feeders.append(stack.enter_context(_lay_out(folders, found, number, len(hosts))))
        environment = _environment(spec, job, mark)
        containers = [stack.enter_context(_Container(folders, environment)) for folders in bases]
        _await_all(containers, feeders, time.monotonic() + spec.max_run_s)
    return bases[0].base


def _environment(spec: TrainingSpec, job: str, mark: str) -> dict[str, str]:
    """What all containers have in common. Several of them meet on loopback, where their names mean nothing."""
    meeting = {"MASTER_ADDR": _LOOPBACK} if spec.instance_count > 1 else {}
    own = {JOB_VARIABLE: job, MARK_VARIABLE: marked(os.environ, mark)}
    return {**without_launcher(os.environ), **spec.environment, **meeting, **own}


def _beside(spec: TrainingSpec) -> Path | None:
    return Path(spec.entry_point).expanduser().absolute().parent if spec.entry_point is not None else None


def _lay_out(folders: Folders, channels: Sequence[LocalChannel], number: int, hosts: int) -> PipeFeeder:
    """Put the channels' files into their folders, and those for pipes where the simulator takes them."""
    piped = {}
    for channel in channels:
        folder = (folders.base / ".feed" if channel.mode == "Pipe" else folders.data) / channel.name
        channel.lay_out(folder, number, hosts)
        if channel.mode == "Pipe":
            piped[channel.name] = folder
    return PipeFeeder(folders.data, piped, folders.base / "pipe-sim.log")


@final
class _Container:
    """The process of one container, ended politely and then not if it still runs when the block ends."""

    def __init__(self, folders: Folders, environment: Mapping[str, str]) -> None:
        self.folders = folders
        self._environment = {**environment, BASE_VARIABLE: str(folders.base)}

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch.sagemaker.train_entry"],
            stdin=subprocess.DEVNULL,
            cwd=self.folders.base,
            env=self._environment,
            start_new_session=True,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self.pidfd)


def _await_all(containers: Sequence[_Container], feeders: Sequence[PipeFeeder], deadline: float) -> None:
    """Return when all have ended well; raise for the first that has not."""
    failed: _Container | None = None
    with selectors.DefaultSelector() as selector:
        for container in containers:
            selector.register(container.pidfd, selectors.EVENT_READ, container)
        while selector.get_map() and time.monotonic() < deadline:
            left = deadline - time.monotonic()
            for key, _ in selector.select(min(max(0.0, left), _LOOK_SECONDS)):
                selector.unregister(key.fileobj)
                if key.data.process.wait() and failed is None:
                    failed = key.data
                    deadline = min(deadline, time.monotonic() + _OTHERS_SECONDS)
            for feeder in feeders if selector.get_map() else ():
                feeder.require_running()
        if failed is not None:
            raise _failure(failed)
        if selector.get_map():
            raise HvdtrainError(
                "The training job has not ended within its max_run_s.",
                "SageMaker would have ended it, and so it was ended here.",
                "give it more seconds, or less to do.",
            )


def _failure(container: _Container) -> HvdtrainError:
    code, path = container.process.returncode, container.folders.output / FILE
    text = path.read_text(errors="replace").strip() if path.exists() else "It left no cause."
    hint = re.search(r"^HINT: (.*)$|HINT: (.*)$", text, re.MULTILINE)
    kind = UsageError if code == UsageError.exit_code else HvdtrainError
    return kind(
        f"The training job failed on {container.folders.base.name} with exit code {code}.",
        text[: hint.start()].strip() if hint else text,
        (hint[1] or hint[2]) if hint else f"{path} has the whole account.",
    )
