"""A command on a terminal of its own, and what that shows."""

from __future__ import annotations

import os
import re
import select
import subprocess
import termios
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from support.process_table import RUN_VARIABLE, kill, processes_of
from support.processes import environment


def watch_terminal(argv: Sequence[str], wanted: str, columns: int, deadline_s: float, cwd: Path) -> str:
    """What a terminal of so many columns has shown of a whole command line once the pattern `wanted` appears in it.

    The command is killed then, so that nothing is seen which only its end brought about.

    Raises:
        AssertionError: the pattern did not appear while the command ran, or not before the deadline.
    """
    mark, end = uuid.uuid4().hex, time.monotonic() + deadline_s
    far, near = os.openpty()
    termios.tcsetwinsize(near, (24, columns))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), near)
    variables = {**environment(), RUN_VARIABLE: mark}
    process = subprocess.Popen(argv, **streams, cwd=cwd, env=variables, start_new_session=True)  # type: ignore[call-overload]
    shown = b""
    try:
        while not re.search(wanted, shown.decode(errors="replace")):
            readable, _, _ = select.select([far], [], [], 0.2)
            shown += os.read(far, 65536) if readable else b""
            alive = process.poll() is None and time.monotonic() < end
            assert alive, f"{wanted!r} was not seen while {argv} ran:\n{shown.decode(errors='replace')}"
    finally:
        while processes := processes_of(mark):
            kill(processes)
        process.wait(timeout=10)
        os.close(far)
        os.close(near)
    return shown.decode(errors="replace")
