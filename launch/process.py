"""One worker: its process, what it writes, and how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, final

from hvdtrain.errors import UsageError

TAIL_LINES = 60
_READ_BYTES = 2**16
_LINE_BYTES = 4000  # of a line that is kept for the report


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code, or minus the signal that killed it.
        by_us: whether the supervisor killed it.
        order: how many workers had ended before.
    """

    code: int
    by_us: bool
    order: int

    @property
    def failed(self) -> bool:
        """Whether it is a failure of its own."""
        return self.code != 0 and not self.by_us


@dataclass
class Tail:
    """The last lines of one worker. Of a line that was redrawn by carriage returns, what was seen last."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _rest: bytes = b""

    def add(self, data: bytes) -> None:
        """Take what was read."""
        *whole, self._rest = (self._rest[-_LINE_BYTES:] + data).split(b"\n")
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES]
            self.lines.append(shown.decode(errors="replace"))

    def text(self) -> list[str]:
        """All lines, an unfinished one too."""
        rest = self._rest.rpartition(b"\r")[2][:_LINE_BYTES].decode(errors="replace")
        return [*self.lines, *([rest] if rest else [])]


@final
class Worker:
    """A started worker. Its process is the leader of a session of its own: the terminal's signals do not reach it.

    Args:
        rank: its number.
        command: argv.
        environment: all of its variables.
        folder: where it starts; None: here.

    Raises:
        UsageError: the program cannot be started.
    """

    def __init__(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str], folder: str | None = None
    ) -> None:
        self.rank = rank
        self.ended: Ended | None = None
        self.tail = Tail()
        self._killed = False
        try:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be started: {error.strerror or error}.",
                "No worker is running.",
                "check the command after `--`, and that the program is on this machine's PATH.",
            ) from error
        self.pidfd = os.pidfd_open(self.process.pid)
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard output and standard error, without blocking."""
        if self.process.stdout is None or self.process.stderr is None:
            raise RuntimeError("a worker's outputs are pipes")
        return self.process.stdout, self.process.stderr

    def read(self, pipe: IO[bytes]) -> bytes | None:
        """What is there: None for nothing now, b"" for nothing any more."""
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        self.tail.add(data)
        return data

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on to the worker itself; its children are its own affair."""
        if self.ended is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the worker and its process group."""
        if self.ended is None:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self, order: int) -> Ended:
        """Collect the process, which has ended."""
        code = self.process.wait()
        self.ended = Ended(code, self._killed and code == -signal.SIGKILL, order)
        os.close(self.pidfd)
        return self.ended

    def close(self) -> None:
        """Close the pipes: a process that still holds the other end writes to nobody."""
        for pipe in self.pipes:
            pipe.close()
