"""How a worker tells when its updates are done: times in a file of its own, in a folder that the environment names.

The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path

VARIABLE = "RECOVERY_BENCHMARK_FOLDER"


class StepTimes:
    """Of this process."""

    def __init__(self) -> None:
        self._file = os.open(Path(os.environ[VARIABLE], str(os.getpid())), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self) -> None:
        """An update is done."""
        os.write(self._file, array("d", [time.monotonic()]).tobytes())


def step_times(folder: Path) -> dict[int, array[float]]:
    """Process → when its updates were done."""
    found = {}
    for file in folder.iterdir():
        data = file.read_bytes()
        found[int(file.name)] = array("d", data[: len(data) // 8 * 8])
    return found
