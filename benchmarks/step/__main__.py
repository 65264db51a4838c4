"""Training steps, ours beside hand-written ones: `python -m benchmarks.step --help`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.step import report
from benchmarks.step.arms import AGAIN, OURS, SUITES, Suite
from benchmarks.step.measure import Measured, measure

_LOSS_TOLERANCE = 1e-2
"""Relative. Arms add the same gradients up in another order; a forgotten exchange or another batch differs by more."""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--counts", type=int, nargs=3, metavar=("WARM-UP", "BATCHES", "ITERATIONS"), help="for a look")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _block(names: list[str], run: Callable[[str], Measured], losses: dict[str, float]) -> dict[str, float]:
    """Mean seconds a step of two runs of each arm, in the order A B C … C B A."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in [*names, *reversed(names)]:
        measured = run(OURS if name == AGAIN else name)
        times[name].append(measured.seconds)
        losses[name] = measured.loss
    print({name: [f"{1e3 * value:.3g} ms" for value in values] for name, values in times.items()}, flush=True)
    return {name: sum(values) / len(values) for name, values in times.items()}


def _measure_suite(suite: Suite, options: argparse.Namespace, cache: str) -> dict[str, Any]:
    print(f"{suite.model.label}, {suite.framework}", flush=True)
    counts = tuple(options.counts) if options.counts else suite.model.counts
    names, losses = [*suite.arms, AGAIN], {}

    def run(name: str) -> Measured:
        return measure(suite.arms[name], options.np, suite.name, counts, cache)

    turned = [names[i % len(names) :] + names[: i % len(names)] for i in range(options.blocks)]
    blocks = [_block(order, run, losses) for order in turned]
    difference = max(abs(loss - losses[OURS]) / losses[OURS] for loss in losses.values())
    if not difference <= _LOSS_TOLERANCE:
        raise RuntimeError(f"the arms do not train alike, their losses are {losses}: their times say nothing")
    return {"counts": counts, "losses": losses, "loss_difference": difference, "blocks": blocks}


def main() -> None:
    """Measure, and write step-<suite>-<date>.json and .md after each suite."""
    options = _parse()
    with tempfile.TemporaryDirectory() as cache:
        for name in options.suites:
            result = {**saved.begun(report.versions()), "np": options.np}
            result["suites"] = {name: _measure_suite(SUITES[name], options, cache)}
            saved.save(result, f"step-{name}", options.out, report.markdown)


if __name__ == "__main__":
    main()
