"""Measure once, with the checkout whose Python and working folder these are; run by `python -m benchmarks.versions`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = os.getcwd()
_WORKERS = 2
_RECORDS = 20_480


def step(suite_name: str, *counts: str) -> float:
    """Seconds a training step."""
    from benchmarks.step.arms import SUITES
    from benchmarks.step.measure import measure

    suite = SUITES[suite_name]
    warmup, batches, iterations = map(int, counts)
    with tempfile.TemporaryDirectory() as cache:
        return measure(suite.arms["hvdtrain"], _WORKERS, suite.name, (warmup, batches, iterations), cache).seconds


def start(launcher: str) -> float:
    """Seconds from a command to the first step of the last worker."""
    from benchmarks.startup.arms import ARMS
    from benchmarks.startup.measure import seconds_to_first_step

    return seconds_to_first_step(ARMS[launcher], _WORKERS)


def loader(order: str) -> float:
    """Seconds to read an epoch of small records, the second one of this process."""
    from benchmarks.loader.arms.ours import LoaderArm
    from benchmarks.loader.datasets import DataSet

    arm, data = LoaderArm(check_crc=True), DataSet("3kb", _RECORDS, 256, 0, "fixed", 3072)
    with tempfile.TemporaryDirectory() as folder:
        arm.prepare(Path(folder), data)
        opened = arm.open(Path(folder), data, order)
        for _ in range(2):
            begin = time.perf_counter()
            for _batch in arm.batches(opened):
                pass
            seconds = time.perf_counter() - begin
        arm.close(opened)
    return seconds


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    print(json.dumps({"seconds": {"step": step, "start": start, "loader": loader}[kind](*words)}))
