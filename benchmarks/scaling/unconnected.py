"""A training step of two workers, of one alone, of two that know nothing of each other, and of two that do no more than
what must be done: they compute, and sum as many bytes.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

from benchmarks.blocks import measured
from benchmarks.step.arms import EXCHANGING, SUITES, Arm
from benchmarks.step.measure import measure

SUITE_NAMES = ("resnet18", "linear20", "mlp")
ARMS = ("alone", "unconnected", "exchanging", "together")
OURS, AGAIN = "together", "again"
"""AGAIN: two workers once more, what chance does."""


def blocks(suite_name: str, counts: tuple[int, int, int], count: int) -> list[dict[str, float]]:
    """Seconds a step of each arm in each block; of two processes the slower one."""
    return measured(
        ARMS,
        (OURS, AGAIN),
        count,
        lambda arm: _seconds(suite_name, arm, counts),
        lambda seconds: f"{1e3 * seconds:.3g} ms",
    )


def _seconds(suite_name: str, arm: str, counts: tuple[int, int, int]) -> float:
    suite = SUITES[suite_name]

    def run(workers: int, how: Arm = suite.arms["hvdtrain"]) -> float:
        with tempfile.TemporaryDirectory() as cache:
            return measure(how, workers, suite.name, counts, cache).seconds

    if arm == "alone":
        return run(1)
    if arm == "unconnected":
        with ThreadPoolExecutor(2) as pool:
            return max(pool.map(run, (1, 1)))
    return run(2, EXCHANGING) if arm == "exchanging" else run(2)
