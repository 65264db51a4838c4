"""Hosts that come and go, as a script tells: Horovod's contract of --host-discovery-script.

The script prints a line for each host that can be used now, `HOST:SLOTS` or `HOST`, which is one slot. It is run again
and again. What fails or prints nonsense changes nothing: the answer before stays.
"""

import queue
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, join_hosts, parse_name_and_slots

SECONDS_BETWEEN = 1.0
"""As Horovod's."""

_MOST_SECONDS = 60.0  # that the script may take
_SHOWN = 300

_FLAG = "--host-discovery-script"


class HostDiscovery:
    """Runs the script in a thread, until its block ends.

    Args:
        notify: called in that thread after each change of `hosts`, and each complaint.
        first: the script's first answer, where it was asked already.

    Attributes:
        hosts: what the script said last.

    Raises:
        UsageError: the script's first answer cannot be had.
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

    def take_complaints(self) -> list[str]:
        """What there is to say about the script since the last call, for people."""
        taken = []
        with suppress(queue.Empty):
            while True:
                taken.append(self._complaints.get_nowait())
        return taken

    def _ask(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN):
            try:
                hosts = discovered(self._script)
            except UsageError as error:
                self._complain(f"{error.fact} {error.conflict}")
                continue
            self._complaint = ""
            if hosts != self.hosts:
                self.hosts = hosts
                self._notify()

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaints.put(f"hvdtrain launch: {complaint} The hosts that it named before stay in use.")
            self._notify()
        self._complaint = complaint


def discovered(script: str) -> tuple[Host, ...]:
    """The hosts that the script names now.

    Raises:
        UsageError: it cannot be run, fails, takes more than a minute, or prints something else than hosts.
    """
    try:
        ran = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise _unusable(script, f"cannot be run: {error}") from error
    if ran.returncode:
        raise _unusable(script, f"ended with exit code {ran.returncode}: {ran.stderr.strip()[:_SHOWN]!r}")
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    return join_hosts([parse_name_and_slots(line, f"{_FLAG}: ") for line in lines], _FLAG) if lines else ()


def _unusable(script: str, why: str) -> UsageError:
    return UsageError(
        f"The script {script} of {_FLAG} {why}.",
        "Which hosts there are cannot be told.",
        "let it print a line HOST:SLOTS for each host, and make it executable.",
    )
