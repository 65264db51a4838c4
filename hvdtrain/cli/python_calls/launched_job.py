"""A launcher as a child of this process, which may be a script or a notebook: its output, its end, and interrupts.

The launcher is a process of its own because it owns what it starts: it adopts orphans and kills all that is left, and a
notebook has other children. If this process dies, launcher and workers are killed, too.
"""

import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hvdtrain.cli.python_calls.relay import Relay
from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FILE_VARIABLE, RAISED_VARIABLE, FailureFile, FailureRecord
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, with_job_token
from hvdtrain.launch.processes.worker import require_none_left
from hvdtrain.launch.supervisor.signals import SignalInbox


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job has ended."""

    code: int  # the launcher's exit code, or minus the signal that killed it
    failure: FailureRecord | None  # of the rank that caused the end, or of the launcher; None: nobody left any


def run_job(arguments: Sequence[str], variables: Mapping[str, str], executable: str | None = None) -> JobEnd:
    """Run `hvdtrain launch ARGUMENTS` with `variables` added to this process's own until it has ended; `executable` is
    the Python of launcher and workers (None: this one).

    What it prints goes to sys.stdout and sys.stderr, but not the failure that this returns. Signals that ask for a stop
    are passed on; a second one kills the workers. Whatever ends this call, no process of the job is left.

    Raises: UsageError: there is no such `executable`. HvdtrainError: a process cannot be killed.
    """
    token, record = secrets.token_hex(16), FailureFile()
    with ExitStack() as stack:
        stack.callback(record.close)
        in_main = threading.current_thread() is threading.main_thread()
        inbox = stack.enter_context(SignalInbox()) if in_main else None
        reaper = stack.enter_context(OrphanReaper(token))
        process = _started(
            [executable or sys.executable, "-m", "hvdtrain", "launch", *arguments],
            {**variables, FILE_VARIABLE: record.place, RAISED_VARIABLE: "1"},
            token,
        )
        stack.callback(process.wait)
        stack.callback(lambda: require_none_left(reaper.sweep()))
        with Relay(process, inbox) as relay:
            code = relay.run()
        failure = record.read()
        if relay.was_interrupted and failure is None and code == 1:  # before it could take an interrupt: Python's end
            code = 128 + signal.SIGINT
        return JobEnd(code, failure)


def _started(command: Sequence[str], variables: Mapping[str, str], token: str) -> "subprocess.Popen[bytes]":
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        return _popen(command, variables, token)
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started: {error.strerror or error}.", "It was to run workers.", "check the path."
        ) from error


def _popen(command: Sequence[str], variables: Mapping[str, str], token: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        # A terminal can redraw a bar; a notebook's cell is no file.
        stdout=None if sys.stdout is sys.__stdout__ else subprocess.PIPE,
        stderr=None if sys.stderr is sys.__stderr__ else subprocess.PIPE,
        bufsize=0,
        env={
            **os.environ,
            "PYTHONPATH": _python_path(),
            **variables,
            JOB_TOKEN_VARIABLE: with_job_token(os.environ, token),
        },
        start_new_session=True,  # the terminal's signals come once: by this process
    )


def _python_path() -> str:
    """Workers find the modules that this process finds; what belongs to the interpreter, theirs has itself."""
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = dict.fromkeys(os.path.abspath(folder) for folder in sys.path)
    return os.pathsep.join(folder for folder in folders if not folder.startswith(own) and os.path.isdir(folder))
