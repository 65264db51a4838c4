"""Hosts that come and go, as a script tells: Horovod's contract of --host-discovery-script.

The script prints a line for each host that can be used now, `HOST:SLOTS` or `HOST`, which is one slot. It is run again
and again. What fails or prints nonsense changes nothing: the answer before stays.
"""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, join_hosts, parse_name_and_slots

SECONDS_BETWEEN = 1.0  # as Horovod's
_MOST_SECONDS = 60.0  # that the script may take
_LOOK_SECONDS = 0.2  # between two looks whether it is wanted any longer
_LEAVE_SECONDS = 2.0  # for it to end once it was killed
_SHOWN = 300

_FLAG = "--host-discovery-script"


class Discovery(Protocol):
    """Knows which hosts a job may use now."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """They, as was found last."""

    def take_complaints(self) -> list[str]:
        """What there is to say about finding them since the last call, for people."""


class HostDiscovery:
    """Runs the script in a thread until its block ends; `hosts` is what it said last, or `first`, where it was asked
    before.

    `notify` is called in that thread after each change and each complaint. Raises UsageError: the first answer cannot
    be had.
    """

    def __init__(self, script: str, notify: Callable[[], None], first: tuple[Host, ...] | None = None) -> None:
        self._script, self._notify = script, notify
        self._complaint = ""
        self._complaints: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.hosts = discovered(script) if first is None else first
        self._thread = threading.Thread(target=self._ask, name="host-discovery", daemon=True)

    def __enter__(self) -> "HostDiscovery":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(_LEAVE_SECONDS)  # for the script to be ended

    def take_complaints(self) -> list[str]:
        """What there is to say about the script since the last call, for people."""
        return [self._complaints.get() for _ in range(self._complaints.qsize())]

    def _ask(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN):
            try:
                hosts = discovered(self._script, self._ended)
            except UsageError as error:
                if self._ended.is_set():
                    return
                complaint = f"{error.fact} {error.conflict}"
                if complaint != self._complaint:
                    self._complaints.put(f"hvdtrain launch: {complaint} The hosts that it named before stay in use.")
                    self._notify()
                self._complaint = complaint
                continue
            self._complaint = ""
            if hosts != self.hosts:
                self.hosts = hosts
                self._notify()


def discovered(script: str, ended: threading.Event | None = None) -> tuple[Host, ...]:
    """The hosts that the script names now. Once `ended` is set, the script is ended, which is an error, too. Raises
    UsageError: it cannot be run, fails, takes more than a minute, or prints something else than hosts."""
    try:
        code, said, complained = _output_of(script, ended or threading.Event())
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise _unusable(script, f"cannot be run: {error}") from error
    if code:
        raise _unusable(script, f"ended with exit code {code}: {complained.strip()[:_SHOWN]!r}")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return join_hosts([parse_name_and_slots(line, f"{_FLAG}: ") for line in lines], _FLAG) if lines else ()


def _output_of(script: str, ended: threading.Event) -> tuple[int, str, str]:
    """Exit code and both outputs. A script that takes too long is killed with all that it has started."""
    process = subprocess.Popen(
        [script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + _MOST_SECONDS
    try:
        while True:
            try:
                said, complained = process.communicate(timeout=_LOOK_SECONDS)
                return process.returncode, said, complained
            except subprocess.TimeoutExpired:
                if ended.is_set() or time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(script, _MOST_SECONDS) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children may run although it has ended
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


def _unusable(script: str, why: str) -> UsageError:
    return UsageError(
        f"The script {script} of {_FLAG} {why}.",
        "Which hosts there are cannot be told.",
        "let it print a line HOST:SLOTS for each host, and make it executable.",
    )
