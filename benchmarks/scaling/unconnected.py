"""A training step of two workers, of one alone, and of two processes at once that know nothing of each other."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

from benchmarks.step.arms import SUITES
from benchmarks.step.measure import measure

SUITE_NAMES = ("resnet18", "linear20", "mlp")
ARMS = ("alone", "unconnected", "together", "again")
"""`again`: two workers once more, what chance does."""


def block(suite_name: str, counts: tuple[int, int, int], first: int) -> dict[str, float]:
    """Mean seconds a step of two runs of each arm, in the order A B C D D C B A; of two processes the slower one."""
    order = [*ARMS[first % len(ARMS) :], *ARMS[: first % len(ARMS)]]
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm in [*order, *reversed(order)]:
        times[arm].append(_seconds(suite_name, arm, counts))
    print({arm: [f"{1e3 * seconds:.3g} ms" for seconds in runs] for arm, runs in times.items()}, flush=True)
    return {arm: sum(runs) / len(runs) for arm, runs in times.items()}


def _seconds(suite_name: str, arm: str, counts: tuple[int, int, int]) -> float:
    suite = SUITES[suite_name]

    def run(workers: int) -> float:
        with tempfile.TemporaryDirectory() as cache:
            return measure(suite.arms["hvdtrain"], workers, suite.name, counts, cache).seconds

    if arm == "alone":
        return run(1)
    if arm == "unconnected":
        with ThreadPoolExecutor(2) as pool:
            return max(pool.map(run, (1, 1)))
    return run(2)
