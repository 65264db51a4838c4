"""Commands as processes of their own: outputs kept, deadlines kept, and nothing of them left in the end."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.process_table import RUN_VARIABLE, kill, processes_of
from support.warm.interpreters import Interpreter, children_of, with_interpreter

DEADLINE_S = 240.0
GONE_S = 10.0
"""What a command started may live that much longer than itself."""

_TAIL_CHARACTERS = 6000
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Finished:
    """A command that ended by itself, or what one that still runs has said so far.

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


def _shared_file(name: str) -> int:
    """A file in memory to which several processes write at once: without O_APPEND one's line may replace another's,
    as Linux moves the common offset of such a file without a lock."""
    descriptor = os.memfd_create(name)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


class Spawned:
    """A command that is running. A context manager: in the end, all that it has started is killed.

    Args:
        env: all its variables; None: `environment()`.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | str | None = None
    ) -> None:
        self.argv = list(argv)
        self._mark = uuid.uuid4().hex
        self._finished: Finished | None = None
        self._out, self._err = _shared_file("stdout"), _shared_file("stderr")
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**(environment() if env is None else env), RUN_VARIABLE: self._mark},
            cwd=cwd,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self.close()

    @property
    def said(self) -> Finished:
        """What it has said so far."""
        seconds = time.monotonic() - self._began
        return self._finished or Finished(self.process.poll(), _read(self._out), _read(self._err), seconds)

    @property
    def output(self) -> str:
        """What it has said so far, standard output first."""
        return self.said.output

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def processes(self) -> list[int]:
        """All that it has started and that runs, itself included."""
        return processes_of(self._mark)

    def forked(self, process: int) -> int:
        """The child of a warm interpreter for which this process stands; the process itself where it is none."""
        return children_of(self._mark).get(process, process)

    def kill(self) -> None:
        """SIGKILL for the command itself, not for what it started."""
        own = self.process.pid  # of nsenter, whose only child is the command
        kill(int(child) for child in Path(f"/proc/{own}/task/{own}/children").read_text().split())

    def kill_all(self) -> None:
        """SIGKILL for all that it has started."""
        while processes := self.processes():
            kill(processes)
            time.sleep(_PAUSE_SECONDS)

    def await_that(self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
        """Wait for a condition. Raises: AssertionError: it does not hold in time, or when the command has ended."""
        wait_until(what, lambda: condition() or not self.running, seconds, lambda: self.said.tail())
        assert condition(), f"it has ended without {what}\n{self.said.tail()}"

    def wait(self, deadline_s: float = DEADLINE_S) -> Finished:
        """Wait until it ends.

        Raises:
            AssertionError: it did not within `deadline_s` seconds. It is given up; what it started on another host is
                not killed.
        """
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            said = self.close().tail()
            raise AssertionError(f"{self.argv} did not end within {deadline_s} s\n{said}") from None
        return self.close()

    def require_gone(self, seconds: float = GONE_S) -> None:
        """Raises: AssertionError: something that it has started still runs after so many seconds."""
        wait_until(f"the end of all that {self.argv} started", lambda: not self.processes(), seconds, self._left)

    def _left(self) -> str:
        return f"left behind: {self.processes()}\n{self.said.tail()}"

    def close(self) -> Finished:
        """Stop watching it, whether it has ended or not."""
        if self._finished is None:
            self.process.kill()
            self.process.wait(GONE_S)
            self._finished = self.said
            os.close(self._out)
            os.close(self._err)
        return self._finished


def _read(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def run_command(
    command: Sequence[str],
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    interpreter: Interpreter = "warm",
) -> Finished:
    """Run a whole command line, launcher included, until it has ended with all that it started.

    Args:
        command: argv, perhaps with the word "python".
        deadline_s: seconds until everything is killed.
        env: variables added to this process's own.
        cwd: working directory.
        interpreter: "fresh" starts this interpreter for the word "python". "warm" forks one that has imported the
            framework, which spares seconds: for all that does not depend on how processes start, or are killed.

    Raises:
        AssertionError: at the deadline, with the ends of the outputs; or if processes outlive the command by 10 s.
    """
    with Spawned(with_interpreter(command, interpreter), environment(env), cwd) as spawned:
        finished = spawned.wait(deadline_s)
        spawned.require_gone()
    return finished


def environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables for a command of a test, and those that are added."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # One thread a rank: other tests run beside these, and a rank would wait for its threads that wait for a core.
    ours = {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **(added or {})}


def python_path(*folders: Path) -> dict[str, str]:
    """The variable that puts these folders before those where Python looks for modules."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])}


def wait_until(
    what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_S, context: Callable[[], str] = str
) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it does not hold after `deadline_s` seconds; the message has `what` and `context()`.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}\n{context()}")
        time.sleep(_PAUSE_SECONDS)


def free_port() -> int:
    """One of this machine on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
