"""Run one command and say when each rank had done its first step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.startup.arms import Arm, environment
from benchmarks.startup.first_step import VARIABLE, first_steps

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0


def seconds_to_first_step(arm: Arm, np: int, cold: bool = False) -> float:
    """Seconds from starting the command until the last rank has done its first step.

    Args:
        arm: the command.
        np: workers.
        cold: drop the page cache first (root only).

    Raises:
        RuntimeError: not every rank made a step.
    """
    if cold:
        _drop_page_cache()
    with tempfile.TemporaryDirectory() as scratch:
        times = Path(scratch, "times")
        times.mkdir()
        argv = arm.argv(np, Path(scratch, "run"))
        begin = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=environment(str(times), VARIABLE),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        ends = first_steps(times)
    about = f"{' '.join(argv)}: exit code {done.returncode}, ranks {sorted(ends)}\n{done.stderr[-3000:]}"
    if len(ends) != np:
        raise RuntimeError(about)
    if done.returncode != 0:  # what was measured is before: torch.distributed now and then aborts as it ends
        print(f"ended with an error after its first steps: {about}", file=sys.stderr)
    return max(ends.values()) - begin


def _drop_page_cache() -> None:
    subprocess.run(["sync"], check=True, timeout=DEADLINE_S)
    Path("/proc/sys/vm/drop_caches").write_text("3")
