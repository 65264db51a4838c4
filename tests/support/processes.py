"""Commands on emulated hosts: outputs in files, deadlines kept, and who is still running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_CHARACTERS = 6000
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Finished:
    """A command that ended by itself.

    Attributes:
        seconds: from start to end.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        """Both outputs."""
        return self.stdout + self.stderr

    def tail(self) -> str:
        """The ends of both outputs, for an assertion's message."""
        return (
            f"exit code {self.returncode} after {self.seconds:.1f} s\n--- stdout\n{self.stdout[-_TAIL_CHARACTERS:]}\n"
            f"--- stderr\n{self.stderr[-_TAIL_CHARACTERS:]}"
        )


class Spawned:
    """A command that is running on a host."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self.argv = list(argv)
        self._finished: Finished | None = None
        self._out, self._err = os.memfd_create("stdout"), os.memfd_create("stderr")
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        """What it has said so far, standard output first."""
        return self._finished.output if self._finished else _read(self._out) + _read(self._err)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL for the command itself, not for what it started."""
        own = self._process.pid  # of nsenter, whose only child is the command
        kill(int(child) for child in Path(f"/proc/{own}/task/{own}/children").read_text().split())

    def wait(self, deadline_s: float) -> Finished:
        """Wait until it ends.

        Raises:
            AssertionError: it did not within `deadline_s` seconds. It is given up; what it started on a host is not
                killed.
        """
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            said = self.close().tail()
            raise AssertionError(f"{self.argv} did not end within {deadline_s} s\n{said}") from None
        return self.close()

    def close(self) -> Finished:
        """Stop watching it, whether it has ended or not."""
        if self._finished is None:
            self._process.kill()
            code = self._process.wait()
            self._finished = Finished(code, _read(self._out), _read(self._err), time.monotonic() - self._began)
            os.close(self._out)
            os.close(self._err)
        return self._finished


def _read(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def wait_until(what: str, condition: Callable[[], bool], deadline_s: float, context: Callable[[], str] = str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it does not hold after `deadline_s` seconds; the message has `what` and `context()`.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}\n{context()}")
        time.sleep(_PAUSE_SECONDS)


def processes_in(init_pid: int) -> dict[int, str]:
    """Processes of the process namespace whose process 1 is `init_pid`, without that: pid as seen here → command."""
    space = os.readlink(f"/proc/{init_pid}/ns/pid")
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == init_pid:
            continue
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == space and _is_alive(name):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                found[int(name)] = b" ".join(words).decode(errors="replace").strip()
        except OSError:
            continue  # ended meanwhile
    return found


def _is_alive(name: str) -> bool:
    return Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of `pids` that are still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # ended meanwhile
