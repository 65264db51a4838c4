"""One worker: its process, and what it writes."""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.failure_record import FILE_VARIABLE, FailureFile, FailureRecord, end_of
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, Seen, kill_job, with_job_token
from hvdtrain.world_channel import CHANNEL_VARIABLE, LineReader, line_of

_READ_BYTES = 2**16
_SWEEP_SECONDS = 1.0  # others wait meanwhile; what stays is swept again with all of the job's processes


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What one worker is to run: its number, argv, and all of its variables; whether it gets a `WorldChannel`."""

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    is_elastic: bool = False


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended."""

    code: int  # its exit code, or minus the signal that killed it
    by_us: bool = False  # whether the supervisor killed it
    out_of_memory: bool = False  # whether the kernel has killed processes of its host for lack of memory meanwhile
    lost: str = ""  # why it is not known any more what it does; empty where it is
    failure: FailureRecord | None = None  # what it has left about its failure, if anything

    @property
    def failed(self) -> bool:
        return self.code != 0 and not self.by_us


class Worker:
    """A worker, started in `folder` (None: here), as the leader of a session of its own: the terminal's signals do not
    reach it. Raises UsageError: the program cannot be started."""

    def __init__(self, spec: WorkerSpec, folder: str | None = None) -> None:
        self.rank = spec.rank
        self._ended = False
        self._killed = False
        self._failure = FailureFile()
        self.channel: socket.socket | None  # the launcher's end of the worker's `WorldChannel`, without blocking
        self.channel, end = socket.socketpair() if spec.is_elastic else (None, None)
        if self.channel is not None:
            self.channel.setblocking(False)
        self._lines = LineReader()
        self._mark = secrets.token_hex(16) if spec.is_elastic else None
        channel = {} if end is None else {CHANNEL_VARIABLE: str(end.fileno())}
        mark = {JOB_TOKEN_VARIABLE: with_job_token(spec.environment, self._mark)} if self._mark else {}
        try:
            self.process = subprocess.Popen(
                list(spec.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env={**spec.environment, **mark, FILE_VARIABLE: self._failure.place, **channel},
                pass_fds=[] if end is None else [end.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self._failure.close()
            self._close_channel()
            raise _not_startable(spec.command[0], folder, error) from error
        finally:
            if end is not None:
                end.close()
        self.pidfd = os.pidfd_open(self.process.pid)
        self.pipes = cast(IO[bytes], self.process.stdout), cast(IO[bytes], self.process.stderr)
        """Standard output and standard error, without blocking."""
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    def read(self, pipe: IO[bytes]) -> bytes | None:
        """What is there: None for nothing now, b"" for nothing any more."""
        try:
            return os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None

    def read_channel(self) -> list[dict[str, Any]] | None:
        """What the worker has said by its channel; None for nothing any more."""
        if self.channel is None:
            return None
        try:
            data = self.channel.recv(_READ_BYTES)
            return self._lines.feed(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            return None

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order by its channel. A worker that is gone does not get it."""
        if self.channel is not None:
            with suppress(OSError):
                self.channel.sendall(line_of(order))

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on to the worker itself; its children are its own affair."""
        if not self._ended:
            self.process.send_signal(number)

    def kill(self) -> None:
        if not self._ended:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def sweep(self) -> None:
        """SIGKILL what the worker has started, after its own end: in an elastic job the others go on, and what it left
        behind would hold its files and memory. Elsewhere all of the job's processes are killed together."""
        if self._mark is not None:
            kill_job(self._mark, self._session, _SWEEP_SECONDS)

    def _session(self, table: Mapping[int, Seen]) -> set[int]:
        return {process for process, seen in table.items() if seen.session == self.process.pid}

    def reap(self, out_of_memory: bool = False) -> WorkerExit:
        code = self.process.wait()
        self._ended = True
        os.close(self.pidfd)
        by_us = self._killed and code == -signal.SIGKILL
        code, failure = end_of(code, self._failure.read(), self.process.pid)
        return WorkerExit(code, by_us, out_of_memory, failure=failure)

    def close(self) -> None:
        """Close the pipes and the record: a process that still holds the other end writes to nobody."""
        if not self._ended:
            self.process.poll()
            os.close(self.pidfd)
            self._ended = True
        for pipe in self.pipes:
            pipe.close()
        self._failure.close()
        self._close_channel()

    def _close_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()


def _not_startable(program: str, folder: str | None, error: OSError) -> UsageError:
    if folder is not None and not os.path.isdir(folder):
        return UsageError(
            f"The working directory {folder} is not a folder on this host.",
            "No worker is running.",
            "make it on every host, or choose another with --working-dir.",
        )
    return UsageError(
        f"{program} cannot be started: {error.strerror or error}.",
        "No worker is running.",
        "check the command after `--`, and that the program is on this machine's PATH.",
    )


def require_none_left(processes: Sequence[object], kind: type[HvdtrainError] = HvdtrainError) -> None:
    """Raise `kind` if processes of the job were killed and still run."""
    if processes:
        raise kind(
            f"Processes {', '.join(map(str, processes))} of the job cannot be killed.",
            "They wait inside the kernel, and may hold the run folder and the GPU.",
            "look at them with `ps -o pid,stat,wchan,cmd`; a dead network disk is the usual cause.",
        )
