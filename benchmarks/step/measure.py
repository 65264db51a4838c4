"""Run one arm, and read what its rank 0 printed."""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.step.arms import Arm, environment
from benchmarks.step.workload import MODELS

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Measured:
    """One run of an arm: seconds a step (the median over iterations), and the loss of the last iteration."""

    seconds: float
    loss: float


def measure(arm: Arm, np: int, model: str, counts: tuple[int, int, int], cache: str) -> Measured:
    """Run an arm once.

    Args:
        arm: the command.
        np: workers.
        model: its network.
        counts: steps to warm up, steps of an iteration, iterations.
        cache: a folder for what hvdtrain keeps.

    Raises:
        RuntimeError: the command failed, or printed no result.
    """
    argv = arm.argv(np, model, counts)
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment(cache),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if '"iterations"' in line]
    if done.returncode != 0 or len(lines) != 1:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    report = json.loads(lines[0][lines[0].index("{") :])  # launchers may put the rank before it
    return Measured(MODELS[model].batch / statistics.median(report["iterations"]), float(report["loss"]))
