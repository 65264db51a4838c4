"""What each thing costs a job of N workers, for growing N: `python -m benchmarks.scale --help`."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.commands import REPOSITORY, printed_json
from benchmarks.scale.for_sizes import measure_and_save
from benchmarks.scale.report import MOST_SECONDS

SIZES: Final = (8, 64, 512, 4096, 10_000)
COMMANDS: Final = {
    "top": (("top", "--once"), 1),
    "report": (("report",), 1),
    "compare": (("compare",), 2),
    "logs": (("logs",), 1),
    "verify": (("shard", "verify"), 1),
}
"""Each with how many run folders it takes."""

_DEADLINE_S: Final = 1800.0


def measure(code: Path, size: int, folder: Path) -> dict[str, Any]:
    """What the code in the checkout `code` needs for `size` workers; `folder` is made and removed."""
    shutil.rmtree(folder, ignore_errors=True)
    packages, run = folder / "packages", folder / "run"
    packages.mkdir(parents=True)
    for name, checkout in (("hvdtrain", code), ("data_sharding", code), ("benchmarks", REPOSITORY)):
        (packages / name).symlink_to(checkout / name)
    environ = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    try:
        worker = [sys.executable, "-m", "benchmarks.scale.worker", str(size), str(run)]
        found = printed_json(worker, "reading", environ, _DEADLINE_S, folder)
        other = folder / "other"
        shutil.copytree(run, other, ignore=shutil.ignore_patterns("logs", "heartbeats"))
        for name, (command, runs) in COMMANDS.items():
            argv = [sys.executable, "-m", "hvdtrain", *command, *[str(run), str(other)][:runs]]
            if cost := _command(argv, environ, folder):
                found[name] = cost
        return found
    finally:
        shutil.rmtree(folder)


def _command(argv: Sequence[str], environ: dict[str, str], folder: Path) -> dict[str, float]:
    """Seconds on a processor and the most bytes of memory, imports included; nothing of a command that needs more than
    `MOST_SECONDS`. Raises RuntimeError: it fails."""
    child = subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    resource.prlimit(child.pid, resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {}
    if child.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit code {child.returncode}")
    return {"seconds": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}


if __name__ == "__main__":
    measure_and_save("scale", __doc__, SIZES, measure)
