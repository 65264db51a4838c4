"""Run one arm, and read what its rank 0 printed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.commands import printed_json
from benchmarks.step.arms import Arm, environment
from benchmarks.step.workload import MODELS

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
    report = printed_json(arm.argv(np, model, counts), "iterations", environment(cache), DEADLINE_S)
    return Measured(MODELS[model].batch / statistics.median(report["iterations"]), float(report["loss"]))
