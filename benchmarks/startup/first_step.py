"""How a worker tells that its first step is done: the time, in a file that the environment names.

The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "STARTUP_BENCHMARK_FOLDER"


def record_first_step(rank: int) -> None:
    """Write the time, once: later steps leave it as it is."""
    file = Path(os.environ[VARIABLE]) / f"rank_{rank}"
    if not file.exists():
        file.write_text(repr(time.monotonic()))


def first_steps(folder: Path) -> dict[int, float]:
    """Rank → when its first step was done, in seconds of CLOCK_MONOTONIC."""
    return {int(file.name.removeprefix("rank_")): float(file.read_text()) for file in folder.iterdir()}
