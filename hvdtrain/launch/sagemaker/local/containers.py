"""The containers of a job on this machine: their processes, the simulators of their pipes, and their supervisor."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from hvdtrain.errors import RESUMABLE, HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.container.contract import BASE_VARIABLE, Folders
from hvdtrain.launch.sagemaker.failure_file import FAILURE_FILE
from hvdtrain.launch.sagemaker.train_entry import ELSEWHERE, GRACE_SECONDS
from hvdtrain.launch.supervisor.signals import SignalInbox

END_SECONDS = GRACE_SECONDS + 20.0  # seconds from SIGTERM to SIGKILL, as on SageMaker
_OTHERS_SECONDS = 8.0  # that containers may still run after one has failed: SageMaker ends them, too
_LOOK_SECONDS = 1.0  # between two looks at the simulators
_ALL_EPOCHS = 1_000_000  # SageMaker's agent feeds as long as somebody reads
_FEEDER_END_SECONDS = 10.0


class LocalContainer:
    """Runs what an image's `train` runs, in its own folders, with variables that all containers have in common."""

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
        self._was_signaled = True
        self.process.send_signal(number)

    def close(self) -> None:
        """End it, if it still runs. A second signal would end the time that workers have to save in."""
        _end(self.process, END_SECONDS, ask=not self._was_signaled)
        os.close(self.pidfd)

    @property
    def failure(self) -> tuple[str, str]:
        """What it wrote of its failure, and the HINT of that; either may be empty."""
        path = self.folders.output / FAILURE_FILE
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        hint = re.search(r"^HINT: (.*)$|HINT: (.*)$", text, re.MULTILINE)
        return (text[: hint.start()].strip(), hint[1] or hint[2]) if hint else (text, "")


class PipeFeeder:
    """Feeds the Pipe channels of one container by `hvdtrain shard pipe-sim`, as SageMaker's agent would.

    `channels` maps a name to the folder whose files it delivers through a FIFO in `data`; `environment` has the job's
    token, by which the job's reaper finds the simulator.
    """

    def __init__(self, data: Path, channels: Mapping[str, Path], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
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
        if self._process.poll() is not None:
            said = self._log.read_text(errors="replace").strip()
            raise HvdtrainError(
                f"The simulator of the pipes has ended: {said[-600:] or 'it said nothing'}.",
                "Workers would wait for their data.",
                f"see {self._log}.",
            )

    def close(self) -> None:
        """End the simulator, which removes its FIFOs."""
        _end(self._process, _FEEDER_END_SECONDS)


@dataclass(eq=False)
class ContainerSupervisor:
    """Supervises the running containers of a job, and the feeders of their pipes, for at most `max_run_s` seconds.
    Signals of `inbox` are passed on; None: somebody else handles them."""

    containers: Sequence[LocalContainer]
    feeders: Sequence[PipeFeeder]
    max_run_s: float
    inbox: SignalInbox | None

    def __post_init__(self) -> None:
        self._running = list(self.containers)
        self._failed: list[LocalContainer] = []
        self._stop_at = time.monotonic() + self.max_run_s
        self._kill_at: float | None = None
        self._stopped_by: signal.Signals | None = None
        self._is_late = False

    def run(self) -> None:
        """Return when all have ended well. Raises UsageError: a container reports that an argument of the job is wrong;
        HvdtrainError: a container failed, the job took too long, or a signal stopped it, with exit code 75 if it can go
        on later, else 128 and the signal."""
        while self._running:
            files = [container.pidfd for container in self._running]
            files += [self.inbox.fileno()] if self.inbox is not None else []
            deadline = self._stop_at if self._kill_at is None else self._kill_at
            wait(files, min(max(0.0, deadline - time.monotonic()), _LOOK_SECONDS))
            for container in [each for each in self._running if each.process.poll() is not None]:
                self._on_end(container)
            for number in self.inbox.take() if self.inbox is not None else ():
                self._stopped_by = self._stopped_by or number
                self._stop(number)
            self._act_on_deadlines()
            for feeder in self.feeders if self._running and self._kill_at is None else ():
                feeder.require_running()
        self._raise_failure()

    def _on_end(self, container: LocalContainer) -> None:
        self._running.remove(container)
        if container.process.returncode and self._kill_at is None:
            if not self._failed:
                self._stop_at = min(self._stop_at, time.monotonic() + _OTHERS_SECONDS)
            self._failed.append(container)

    def _stop(self, number: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + END_SECONDS
        for container in self._running:
            container.send(number)

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if self._running and self._kill_at is None and now >= self._stop_at:
            self._is_late = not self._failed
            self._stop(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            for container in self._running:
                container.process.kill()

    def _raise_failure(self) -> None:
        if self._failed:
            causes = [container for container in self._failed if not container.failure[0].startswith(ELSEWHERE)]
            raise _failure((causes or self._failed)[0])
        codes = {container.process.returncode for container in self.containers}
        if self._stopped_by is not None and codes != {0}:
            raise _stopped(self._stopped_by, self.containers[0], codes <= {0, RESUMABLE})
        if self._is_late and codes != {0}:
            raise HvdtrainError(
                "The training job has not ended within its max_run_s.",
                "SageMaker would have ended it, and so it was ended here.",
                "give it more seconds, or less to do.",
            )


def _stopped(number: signal.Signals, first: LocalContainer, is_resumable: bool) -> HvdtrainError:
    text, hint = first.failure
    error = HvdtrainError(
        f"The training job was stopped by {number.name}.",
        text.partition("\n")[0] if is_resumable and text else "Not all of its workers left by themselves.",
        (is_resumable and hint) or f"{first.folders.output / FAILURE_FILE} has the whole account.",
    )
    error.exit_code = RESUMABLE if is_resumable else 128 + number
    return error


def _failure(container: LocalContainer) -> HvdtrainError:
    code, (text, hint) = container.process.returncode, container.failure
    kind = UsageError if code == UsageError.exit_code else HvdtrainError
    did = "stopped" if code == RESUMABLE else "failed"
    error = kind(
        f"The training job {did} on {container.folders.base.name} with exit code {code}.",
        text or "It left no cause.",
        hint or f"{container.folders.output / FAILURE_FILE} has the whole account.",
    )
    if code == RESUMABLE:
        error.exit_code = RESUMABLE
    return error


def _end(process: subprocess.Popen[bytes], seconds: float, ask: bool = True) -> None:
    if ask:
        process.send_signal(signal.SIGTERM)  # does nothing where the process has ended
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
