"""The system's processes, from /proc: which belong to what a test has started, and what they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from support.warm.interpreters import children_of

RUN_VARIABLE = "HVDTRAIN_TEST_RUN"
"""Launchers put workers into sessions of their own, so a process group is not enough: every process of one command
carries this variable, and the command's processes are those that do."""


def processes_of(mark: str) -> list[int]:
    """Those of the command with this mark, in the order in which they were started."""
    wanted, sessions, found = f"{RUN_VARIABLE}={mark}".encode(), {*children_of(mark).values()}, []
    for process in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        forked = int(words[3]) in sessions and words[0] != "Z"
        if forked or wanted in environ_of(process).split(b"\0"):
            found.append(process)
    return found


def processes_in(init_pid: int) -> dict[int, str]:
    """Processes of the process namespace whose process 1 is `init_pid`, without that: pid as seen here → command."""
    space = os.readlink(f"/proc/{init_pid}/ns/pid")
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == init_pid:
            continue
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == space and is_alive(int(name)):
                found[int(name)] = command_of(int(name)).replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # ended meanwhile
    return found


def is_alive(process: int) -> bool:
    """Whether it is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_stopped(process: int) -> bool:
    """Whether all of its threads are: SIGSTOP lets each end the call into the kernel in which it is."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:  # a thread has ended meanwhile
        return False
    return all(text.rpartition(")")[2].split()[0] == "T" for text in stats)


def command_of(process: int) -> bytes:
    """Its command line, each word followed by a zero byte; nothing of one that has ended."""
    return _of(process, "cmdline")


def environ_of(process: int) -> bytes:
    """Its variables, as it was started with them; nothing of one that has ended."""
    return _of(process, "environ")


def variables_of(process: int) -> dict[str, str]:
    """The same by name."""
    return dict(word.partition("=")[::2] for word in environ_of(process).decode(errors="replace").split("\0"))


def _of(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of `pids` that are still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # ended meanwhile
