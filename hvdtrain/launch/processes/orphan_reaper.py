"""Find and kill every process of a job, and a reaper that does so when the launcher itself has been killed.

A process of the job is one whose environment carries the job's token: children and grandchildren inherit it, into
sessions and process groups of their own too. Children of such a process, and members of a session that it leads, belong
to the job even if they have cleared their environment. Orphans of workers come back to the launcher, which is their
"child subreaper" (prctl(2)), so that they are found too.

Run as a program, this file is the reaper; it imports nothing of ours, so that it starts fast and from any folder:

    python -I -S orphan_reaper.py [LAUNCHER [PROCESS ...]]

It reads a token, and kills that job's processes when its standard input ends. Of the process LAUNCHER it also kills
the descendants that it saw at its last look, except those through PROCESS: orphans lose their trace when it dies.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

JOB_TOKEN_VARIABLE = "HVDTRAIN_JOB"
"""Marks of the jobs that a process belongs to, separated by commas: a job may start another one."""

SWEEP_SECONDS = 8.0  # after this time, what is left (waiting in the kernel for a dead disk, say) is given up
LOOK_SECONDS = 2.0  # between two looks of the reaper at the launcher's descendants
_PAUSE_SECONDS = 0.02  # between two looks at processes that were killed and have not gone yet


def with_job_token(environ: Mapping[str, str], token: str) -> str:
    """The variable's value for a process of the job `token` started from `environ`."""
    outer = environ.get(JOB_TOKEN_VARIABLE)
    return f"{outer},{token}" if outer else token


def processes_of(token: str) -> Iterator[int]:
    """Process ids that carry `token`, without this process."""
    prefix = f"{JOB_TOKEN_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        tokens = next((v[len(prefix) :] for v in variables if v.startswith(prefix)), b"")
        if token.encode() in tokens.split(b","):
            yield int(name)


class Seen(NamedTuple):
    """A process: its parent, its session, when it began (in ticks since the machine did), and whether it has ended."""

    parent: int
    session: int
    began: int
    is_zombie: bool


def _all_processes() -> Iterator[tuple[int, Seen]]:
    """/proc/PID/stat, proc(5)."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()  # the program's name before that may hold anything
        except OSError:
            continue
        yield int(name), Seen(int(words[1]), int(words[3]), int(words[19]), words[0] in b"ZX")


def process_table() -> dict[int, Seen]:
    return {process: seen for process, seen in _all_processes() if not seen.is_zombie}


def relatives(processes: Iterable[int], table: Mapping[int, Seen]) -> set[int]:
    """Those of `found` that run, their descendants, and the members of sessions that any of them leads."""
    known = set(processes)
    while more := {p for p, seen in table.items() if p not in known and known & {seen.parent, seen.session}}:
        known |= more
    return {process for process in known if process in table}


def descendants(ancestor: int, without: Collection[int], table: Mapping[int, Seen]) -> set[int]:
    """Processes that descend from `ancestor`, other than through children in `without`."""
    return relatives((p for p, seen in table.items() if seen.parent == ancestor and p not in without), table)


def kill_job(
    token: str, further: Callable[[Mapping[int, Seen]], set[int]] = lambda _table: set(), seconds: float = SWEEP_SECONDS
) -> list[int]:
    """SIGKILL the job's processes, and those that they start meanwhile, until none is left; returns those that stay.
    `further` finds processes of the job that show neither by the token nor by relatives with it."""
    deadline = time.monotonic() + seconds
    while True:
        tokens = list(processes_of(token))
        table = process_table()
        left = (relatives(tokens, table) | further(table)) - {os.getpid()}
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return sorted(left)
        time.sleep(_PAUSE_SECONDS)


class OrphanReaper:
    """A process that kills the job `token` as soon as this one ends, however it ends. Entered before workers start.
    With `adopts`, all that this process starts from now on, and orphans of it, belong to the job too."""

    def __init__(self, token: str, adopts: bool = False) -> None:
        self._token = token
        self._adopts = adopts
        self._spared: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._lock = threading.Lock()  # so that none is started while this ends

    def __enter__(self) -> "OrphanReaper":
        if self._adopts:
            _adopt_orphans(True)
            this_process = os.getpid()
            self._spared = [process for process, seen in process_table().items() if seen.parent == this_process]
        process = self._start()
        threading.Thread(target=self._replace, args=(process,), name="hvdtrain-orphan-reaper", daemon=True).start()
        return self

    def _start(self) -> "subprocess.Popen[bytes]":
        arguments = [os.getpid(), *self._spared] if self._adopts else []
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # out of reach of signals to the launcher's process group
            bufsize=0,
        )
        self._spared.append(process.pid)
        if process.stdin is not None:
            process.stdin.write(self._token.encode())  # it has no reader but the reaper, unlike a command line
        self._process = process
        return process

    def _replace(self, process: "subprocess.Popen[bytes]") -> None:
        """In a thread: another reaper for one that somebody has killed, for example with all processes of a user."""
        while True:
            process.wait()
            with self._lock:
                if self._is_over:
                    return
                try:
                    process = self._start()
                except OSError as error:
                    sys.stderr.write(f"hvdtrain: nothing ends the workers after the launcher any more: {error}.\n")
                    return
            sys.stderr.write(
                "hvdtrain: the process that ends the workers after the launcher is gone; here is another.\n"
            )
            time.sleep(_PAUSE_SECONDS)  # where each of them is killed at once

    def sweep(self) -> list[int]:
        """`kill_job` of this job's processes, orphans too; returns those that stay."""
        if not self._adopts:
            return kill_job(self._token)
        left = kill_job(self._token, lambda table: descendants(os.getpid(), self._spared, table))
        for process, seen in _all_processes():  # nobody else waits for those that were adopted and killed
            if seen.is_zombie and seen.parent == os.getpid() and process not in self._spared:
                with suppress(OSError):
                    os.waitpid(process, os.WNOHANG)
        return left

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._is_over = True
        if self._adopts:
            _adopt_orphans(False)
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(2 * SWEEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _adopt_orphans(adopts: bool) -> None:
    """prctl(2), PR_SET_CHILD_SUBREAPER. Where it cannot be had, orphans are found by their token and session only."""
    import ctypes  # the reaper itself, which starts with every job, does without

    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(adopts), *[ctypes.c_ulong(0)] * 3)


def _still(remembered: Mapping[int, int], table: Mapping[int, Seen]) -> set[int]:
    """Of processes with the time when they began, those that run: numbers are used again."""
    return {process for process, began in remembered.items() if process in table and table[process].began == began}


def _look(launcher: int, without: Collection[int], remembered: Mapping[int, int]) -> Mapping[int, int]:
    """All that descends from the launcher, or did when it was seen before; with the time when each began."""
    table = process_table()
    processes = descendants(launcher, {*without, os.getpid()}, table) | relatives(_still(remembered, table), table)
    if os.getppid() != launcher:  # it has died, and the number may be another's
        return remembered
    return {process: table[process].began for process in processes - {os.getpid()}}


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the launcher, and after it
    launcher, *without = map(int, sys.argv[1:]) if len(sys.argv) > 1 else [0]
    remembered: Mapping[int, int] = {}
    token = b""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_SECONDS if launcher else None)
        data = os.read(0, 4096) if ready else b""
        if ready and not data:
            break
        token += data
        if launcher:
            remembered = _look(launcher, without, remembered)
    if token:
        kill_job(token.decode(), lambda table: relatives(_still(remembered, table), table))


if __name__ == "__main__":
    main()
