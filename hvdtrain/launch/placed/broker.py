"""The launcher's process that talks to a cluster: what is the same for all of them.

A process of its own: a cluster's library writes to standard error, has handlers of signals, waits for minutes for
what is not there, and ends a process whose cluster is gone. It reads lines of JSON from standard input and writes such
lines.

    launcher → broker   the fields of a request, then calls: {"call": HOST, "number": N, "token": T}
    broker → launcher   {"hosts": [[NAME, SLOTS, GPUS], …]} after each change, {"complaint": TEXT},
                        {"number": N, "address": [IP, PORT]} or {"number": N, "error": TEXT},
                        {"refused": [FACT, CONFLICT, HINT]}

When its input ends, it gives the places back, and ends.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hvdtrain.errors import UsageError

Say = Callable[[dict[str, Any]], None]
"""Sends a message to the launcher."""

_LOOK_SECONDS = 0.5  # between two looks at the cluster
_SHOWN = 400  # characters of an error


class Places(Protocol):
    """The places of a job in a cluster."""

    def take_first(self) -> None:
        """Wait for those with which the job begins. Raises UsageError: it gets none."""

    def look(self) -> None:
        """Tell the launcher of hosts that came and went."""

    def call(self, host: str, token: str) -> dict[str, Any]:
        """Let the host's seat run an agent for whoever knows `token`; where that is to be called, or the error."""


def run_broker(open_places: Callable[[dict[str, Any], Say], AbstractContextManager[Places]]) -> int:
    """Be the broker; returns the exit code. `open_places` connects to the cluster by the fields of a request; it may
    raise UsageError, which the launcher is told."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    has_places = threading.Event()
    threading.Thread(target=_read, args=(lines, has_places), daemon=True).start()
    fields, say = json.loads(lines.get()), _teller()
    try:
        with open_places(fields, say) as places:
            places.take_first()
            has_places.set()
            _serve(places, lines, say)
    except UsageError as error:
        say({"refused": [error.fact, error.conflict, error.hint]})
    return 0


def first_line(error: Exception) -> str:
    """What an error of the cluster's library says, on one line."""
    return " ".join(str(error).split())[:_SHOWN].rstrip(".")


def _read(lines: "queue.SimpleQueue[str]", has_places: threading.Event) -> None:
    """An empty line is the end. While places are awaited, nobody would read it; and what a process has asked of the
    cluster ends with it in any case."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    if not has_places.is_set():
        os._exit(0)


def _teller() -> Say:
    """What sends messages to the launcher. From now on only it writes there: libraries print what becomes of nodes."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    return say


def _serve(places: Places, lines: "queue.SimpleQueue[str]", say: Say) -> None:
    while True:
        places.look()
        try:
            line = lines.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if not line:
            return
        order = json.loads(line)
        say({"number": order["number"], **places.call(order["call"], order["token"])})
