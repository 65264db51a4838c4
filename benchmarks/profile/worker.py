"""Run a worker, rank 0 of Open MPI under perf: `python -m benchmarks.profile.worker ARGUMENTS OF PYTHON`."""

from __future__ import annotations

import os
import sys

FILE, DELAY = "BENCHMARKS_PERF_FILE", "BENCHMARKS_PERF_DELAY_MS"
"""Variables: where samples go; how long the start takes, which is not sampled."""

_HERTZ = "299"


def main() -> None:
    """Become the worker."""
    command = [sys.executable, *sys.argv[1:]]
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        perf = ["perf", "record", "--quiet", "--event", "cpu-clock", "--freq", _HERTZ]
        command = [*perf, "--delay", os.environ[DELAY], "--output", os.environ[FILE], "--", *command]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
