"""Start a command on several ranks under a real launcher, with a deadline, leaving no process behind."""

from __future__ import annotations

import functools
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from support.warm.interpreters import WarmInterpreters

Interpreter = Literal["warm", "fresh"]
Launcher = Literal["horovodrun-gloo", "horovodrun", "mpirun"]

# Launchers put workers into sessions of their own, so a process group is not enough: every process of one run
# carries this variable, and the run's processes are those that do.
_RUN_VARIABLE = "HVDTRAIN_TEST_RUN"
_TAIL_CHARACTERS = 6000


@dataclass(frozen=True)
class Finished:
    """A run that ended by itself."""

    returncode: int
    stdout: str
    stderr: str

    def tail(self) -> str:
        """The ends of both outputs, for an assertion's message."""
        return (
            f"exit code {self.returncode}\n--- stdout\n{self.stdout[-_TAIL_CHARACTERS:]}\n"
            f"--- stderr\n{self.stderr[-_TAIL_CHARACTERS:]}"
        )


def run_ranks(
    command: Sequence[str],
    np: int,
    launcher: Launcher,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    interpreter: Interpreter = "warm",
) -> Finished:
    """Run `command` (without the launcher) on `np` ranks of this machine.

    Args:
        command: argv with the word "python".
        np: number of ranks.
        launcher: "horovodrun" lets Horovod choose between MPI and Gloo.
        deadline_s: seconds until everything is killed.
        env: variables added to this process's own.
        cwd: working directory.
        interpreter: "fresh" starts this interpreter for the word "python". "warm" forks one that has imported the
            framework, which spares seconds: for all that does not depend on how processes start, or are killed.

    Raises:
        AssertionError: at the deadline, with the ends of the outputs; or if processes outlive the launcher by 10 s.
    """
    return run_command([*launcher_argv(launcher, np), *command], deadline_s, env, cwd, interpreter)


def run_command(
    command: Sequence[str],
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    interpreter: Interpreter = "warm",
) -> Finished:
    """Run a whole command line, launcher included; arguments and errors as `run_ranks`."""
    run, argv = uuid.uuid4().hex, with_interpreter(command, interpreter)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=_environment(run, env or {}),
            start_new_session=True,
        )
        try:
            process.wait(timeout=deadline_s)
            leaked = _wait_until_gone(run, seconds=10)
        except subprocess.TimeoutExpired:
            leaked = None
        finally:
            _kill_all(run)
            process.wait(timeout=10)
        finished = Finished(process.returncode, _read(out), _read(err))
    if leaked is None:
        raise AssertionError(f"{' '.join(argv)} did not end within {deadline_s} s\n{finished.tail()}")
    if leaked:
        raise AssertionError(f"{' '.join(argv)} left processes {leaked} behind\n{finished.tail()}")
    return finished


def watch_terminal(argv: Sequence[str], wanted: str, columns: int, deadline_s: float, cwd: Path) -> str:
    """What a terminal of so many columns has shown of a whole command line once the pattern `wanted` appears in it.

    The command is killed then, so that nothing is seen which only its end brought about.

    Raises:
        AssertionError: the pattern did not appear while the command ran, or not before the deadline.
    """
    run, end = uuid.uuid4().hex, time.monotonic() + deadline_s
    far, near = os.openpty()
    termios.tcsetwinsize(near, (24, columns))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), near)
    process = subprocess.Popen(argv, **streams, cwd=cwd, env=_environment(run, {}), start_new_session=True)  # type: ignore[call-overload]
    shown = b""
    try:
        while not re.search(wanted, shown.decode(errors="replace")):
            readable, _, _ = select.select([far], [], [], 0.2)
            shown += os.read(far, 65536) if readable else b""
            alive = process.poll() is None and time.monotonic() < end
            assert alive, f"{wanted!r} was not seen while {argv} ran:\n{shown.decode(errors='replace')}"
    finally:
        _kill_all(run)
        process.wait(timeout=10)
        os.close(far)
        os.close(near)
    return shown.decode(errors="replace")


def launcher_argv(launcher: Launcher, np: int) -> list[str]:
    binaries = Path(sys.executable).parent
    if launcher == "mpirun":
        flags = ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        return [str(binaries / "mpirun"), *flags, "-np", str(np)]
    controller = ["--gloo"] if launcher == "horovodrun-gloo" else []
    return [str(binaries / "horovodrun"), *controller, "-np", str(np)]


def with_interpreter(command: Sequence[str], interpreter: Interpreter = "warm") -> list[str]:
    """The command with what stands for the word "python"; see `run_ranks`."""
    if "python" not in command:
        return list(command)
    place = list(command).index("python")
    words = warm().words(command) if interpreter == "warm" else [sys.executable]
    return [*command[:place], *words, *command[place + 1 :]]


@functools.cache
def warm() -> WarmInterpreters:
    """Those of this test process, until `warm().close()`."""
    return WarmInterpreters()


def _environment(run: str, added: Mapping[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # One thread a rank: other tests run beside these, and a rank would wait for its threads that wait for a core.
    ours = {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **added, _RUN_VARIABLE: run}


def _processes_of(run: str) -> list[int]:
    wanted, sessions, found = f"{_RUN_VARIABLE}={run}".encode(), warm().sessions_of(run), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes()
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # Ended meanwhile, or another user's.
        forked = int(words[3]) in sessions and words[0] != "Z"
        if forked or wanted in variables.split(b"\0"):
            found.append(int(folder.name))
    return found


def _wait_until_gone(run: str, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while (alive := _processes_of(run)) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


def _kill_all(run: str) -> None:
    while processes := _processes_of(run):
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # Ended meanwhile.
        time.sleep(0.05)


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
