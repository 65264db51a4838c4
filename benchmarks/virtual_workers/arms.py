"""The trainings that are compared: at each number of workers without virtual workers, and with some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.commands import REPOSITORY

PLAIN, AGAIN, MICRO = "plain", "plain_again", "micro"
STEPS: Final = 12
BATCH: Final = 16
SIDE: Final = 32
_DEADLINE_S: Final = 300.0

SUITES: Final = {1: (1, 8), 2: (2, 4), 3: (3, 8)}
"""Workers, and with how many virtual workers each is compared."""

MICRO_BATCHES: Final = {1: 8, 2: 2, 3: 2}
"""Workers, and in how many micro batches (`--accumulate-steps`) each computes without virtual workers in the arm MICRO:
batches as small as those of the most virtual workers, so that kernels take as long."""

GOALS: Final = {(1, 1): 1.05, (2, 2): 1.15, (3, 3): 1.15}
"""Of the ratio, by workers and virtual workers."""


class Figures(NamedTuple):
    """Of one run: the median of its steps on rank 0, and the memory of its largest worker."""

    seconds: float
    bytes: float


def arms_of(workers: int) -> list[str]:
    return [PLAIN, *(str(count) for count in SUITES[workers]), MICRO]


def run(workers: int, arm: str) -> Figures:
    """Raises `RuntimeError`: the training failed."""
    virtual = {PLAIN: [], MICRO: ["--accumulate-steps", str(MICRO_BATCHES[workers])]}.get(
        arm, ["--virtual-workers", arm]
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", str(workers), "--", "train"]
        argv += ["--task", "synthetic", "--model", "resnet18", "--framework", "torch", "--optimizer", "sgd"]
        argv += ["--task-args.side", str(SIDE), "--task-args.records", str(BATCH * STEPS)]
        argv += ["--global-batch-size", str(BATCH), "--epochs", "1", "--compute-threads", "1", "--tune", "never"]
        argv += ["--deterministic", "--progress", "none", "--report", "never", "--output-dir", str(folder), *virtual]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        result = json.loads((folder / "result.json").read_text())
    return Figures(result["step_seconds"]["0"]["step"]["p50"], max(result["memory_bytes"]["resident"]))


def mean(both: list[Figures]) -> Figures:
    return Figures(sum(f.seconds for f in both) / len(both), max(f.bytes for f in both))
