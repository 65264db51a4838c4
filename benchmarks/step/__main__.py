"""Training steps, ours beside hand-written ones: `python -m benchmarks.step --help`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine, saved
from benchmarks.blocks import measured
from benchmarks.step import report
from benchmarks.step.arms import AGAIN, OURS, SUITES, Suite
from benchmarks.step.measure import measure


def _here() -> list[str]:
    """The suites that this machine can measure."""
    return [name for name, suite in SUITES.items() if machine.gpus() or not suite.on_gpu]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--suites", nargs="*", default=_here(), choices=list(SUITES))
    parser.add_argument("--counts", type=int, nargs=3, metavar=("WARM-UP", "BATCHES", "ITERATIONS"), help="for a look")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    options = parser.parse_args()
    if missing := [name for name in options.suites if name not in _here()]:
        parser.error(f"{missing[0]} needs a GPU, and nvidia-smi names none.")
    return options


def _measure_suite(suite: Suite, options: argparse.Namespace, cache: str) -> dict[str, Any]:
    print(f"{suite.model.label}, {suite.framework}", flush=True)
    counts = tuple(options.counts) if options.counts else suite.model.counts
    losses: dict[str, float] = {}
    workers = _workers(suite, options)

    def run(name: str) -> float:
        found = measure(suite.arms[name], workers, suite.name, counts, cache)
        if suite.arms[name].sums_gradients:
            losses[name] = found.loss
        return found.seconds

    blocks = measured(list(suite.arms), (OURS, AGAIN), options.blocks, run, lambda seconds: f"{1e3 * seconds:.3g} ms")
    difference = max(abs(loss - losses[OURS]) / losses[OURS] for loss in losses.values())
    if not difference <= suite.loss_tolerance:
        raise RuntimeError(f"the arms do not train alike, their losses are {losses}: their times say nothing")
    return {"counts": counts, "losses": losses, "loss_difference": difference, "blocks": blocks}


def _workers(suite: Suite, options: argparse.Namespace) -> int:
    return 1 if suite.on_gpu else int(options.np)


def main() -> None:
    """Measure, and write step-<suite>-<date>.json, .md and .svg after each suite."""
    options = _parse()
    with tempfile.TemporaryDirectory() as cache:
        for name in options.suites:
            result = {**saved.begun(report.versions()), "np": _workers(SUITES[name], options)}
            result["suites"] = {name: _measure_suite(SUITES[name], options, cache)}
            saved.save(result, f"step-{name}", options.out)


if __name__ == "__main__":
    main()
