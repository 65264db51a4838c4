"""The processes of one container on this machine: the container's own, and the simulator that feeds its pipes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.sagemaker.container.contract import BASE_VARIABLE, Folders
from hvdtrain.launch.sagemaker.container.workers import GRACE_SECONDS
from hvdtrain.launch.sagemaker.failure import FILE

END_SECONDS = GRACE_SECONDS + 20.0
"""Seconds from SIGTERM to SIGKILL, as SageMaker has it."""

_ALL_EPOCHS = 1_000_000  # SageMaker's agent feeds as long as somebody reads
_FEEDER_END_SECONDS = 10.0


@final
class LocalContainer:
    """Runs what an image's `train` runs.

    Args:
        folders: its own.
        environment: variables that all containers have in common.
    """

    def __init__(self, folders: Folders, environment: Mapping[str, str]) -> None:
        self.folders = folders
        self._was_signaled = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hvdtrain.launch.sagemaker.train_entry"],
            stdin=subprocess.DEVNULL,
            cwd=folders.base,
            env={**environment, BASE_VARIABLE: str(folders.base)},
            start_new_session=True,
        )
        self.pidfd = os.pidfd_open(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, unless it has ended."""
        self._was_signaled = True
        self.process.send_signal(number)

    def close(self) -> None:
        """End it, if it still runs. A second signal would end the time that workers have to save in."""
        _end(self.process, END_SECONDS, ask=not self._was_signaled)
        os.close(self.pidfd)

    @property
    def failure(self) -> tuple[str, str]:
        """What it wrote of its failure, and the HINT of that; either may be empty."""
        path = self.folders.output / FILE
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        hint = re.search(r"^HINT: (.*)$|HINT: (.*)$", text, re.MULTILINE)
        return (text[: hint.start()].strip(), hint[1] or hint[2]) if hint else (text, "")


@final
class PipeFeeder:
    """Feeds the Pipe channels of one container by `hvdtrain shard pipe-sim`, as SageMaker's agent would.

    Args:
        data: folder of the FIFOs, /opt/ml/input/data of the container.
        channels: name → folder whose files it delivers, in the order of their names. None: no process is started.
        log: file for the simulator's output.
        environment: its variables, with the job's token, so that the job's reaper finds it.
    """

    def __init__(self, data: Path, channels: Mapping[str, Path], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        if not channels:
            return
        named = [word for name, folder in channels.items() for word in ("--channel", f"{name}={folder}/*")]
        command = [sys.executable, "-m", "hvdtrain", "shard", "pipe-sim", "--dir", str(data)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--epochs", str(_ALL_EPOCHS), *named],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    def require_running(self) -> None:
        """Raise HvdtrainError if the simulator has ended, which it does only when something is wrong."""
        if self._process is not None and self._process.poll() is not None:
            said = self._log.read_text(errors="replace").strip()
            raise HvdtrainError(
                f"The simulator of the pipes has ended: {said[-600:] or 'it said nothing'}.",
                "Workers would wait for their data.",
                f"see {self._log}.",
            )

    def close(self) -> None:
        """End the simulator, which removes its FIFOs."""
        if self._process is not None:
            _end(self._process, _FEEDER_END_SECONDS)


def _end(process: subprocess.Popen[bytes], seconds: float, ask: bool = True) -> None:
    if ask:
        process.send_signal(signal.SIGTERM)  # does nothing where the process has ended
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
