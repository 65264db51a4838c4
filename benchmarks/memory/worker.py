"""Run a worker, and write down the most memory that it held: `python -m benchmarks.memory.worker ARGUMENTS OF PYTHON`.

The kernel keeps that figure for the parent, so it is there however the worker ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "BENCHMARKS_MEMORY_FOLDER"
"""Names the folder, for commands that are built before it is known."""


def main() -> None:
    """Bytes go to FOLDER/<process id>; the exit code is the worker's."""
    child = subprocess.Popen([sys.executable, *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    _, status, usage = os.wait4(child.pid, 0)
    Path(os.environ[VARIABLE], str(child.pid)).write_text(str(1024 * usage.ru_maxrss))
    sys.exit(abs(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
