"""Find and kill every process of a job, and a guard that does so when the launcher itself has been killed.

A process of the job is one whose environment carries the job's mark: children and grandchildren inherit it, into
sessions and process groups of their own too. Run as a program, this file is the guard; it imports nothing of ours, so
that it starts fast and from any folder:

    python -I -S process_guard.py      reads a mark, and kills that job's processes when its standard input ends
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

MARK_VARIABLE = "HVDTRAIN_JOB"
"""Marks of the jobs that a process belongs to, separated by commas: a job may start another one."""

SWEEP_SECONDS = 8.0
"""After this time, what is left (waiting in the kernel for a dead disk, say) is given up."""

_PAUSE_SECONDS = 0.02  # between two looks at processes that were killed and have not gone yet


def marked(environ: Mapping[str, str], mark: str) -> str:
    """The variable's value for a process of the job `mark` started from `environ`."""
    outer = environ.get(MARK_VARIABLE)
    return f"{outer},{mark}" if outer else mark


def processes_of(mark: str) -> Iterator[int]:
    """Process ids that carry `mark`, without this process."""
    prefix = f"{MARK_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        marks = next((v[len(prefix) :] for v in variables if v.startswith(prefix)), b"")
        if mark.encode() in marks.split(b","):
            yield int(name)


def kill_all(mark: str) -> list[int]:
    """SIGKILL the job's processes, and those that they start meanwhile, until none is left; returns those that stay."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        left = list(processes_of(mark))
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_PAUSE_SECONDS)


class Guard:
    """A process that kills the job `mark` as soon as this one ends, however it ends. Entered before workers start."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guard:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # out of reach of signals to the launcher's process group
            bufsize=0,
        )
        if self._process.stdin is not None:
            self._process.stdin.write(self._mark.encode())  # it has no reader but the guard, unlike a command line
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(2 * SWEEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The guard's work."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the launcher, and after it
    mark = b""
    while data := os.read(0, 4096):
        mark += data
    if mark:
        kill_all(mark.decode())


if __name__ == "__main__":
    main()
