"""The most memory that a worker holds while it trains: `python -m benchmarks.memory --help`."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.commands import printed_json
from benchmarks.memory import report
from benchmarks.memory.worker import VARIABLE
from benchmarks.step.arms import AGAIN, OURS, SUITES, Arm, environment

_DEADLINE_S = 600.0
_COUNTS = (3, 3, 1)
"""Steps to warm up, steps of an iteration, iterations: memory is all held after the second step."""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=3, help="ABBA blocks (3)")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _watched(arm: Arm) -> Arm:
    """The arm with each worker under `benchmarks.memory.worker`."""
    start = arm.command.index("-m")
    return replace(arm, command=(*arm.command[:start], "-m", "benchmarks.memory.worker", *arm.command[start:]))


def _bytes(arm: Arm, np: int, model: str) -> float:
    """The most that one of the workers held. Raises `RuntimeError` if the command failed."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as peaks:
        environ = {**environment(cache), VARIABLE: peaks}
        printed_json(_watched(arm).argv(np, model, _COUNTS), "iterations", environ, _DEADLINE_S)
        found = [float(path.read_text()) for path in Path(peaks).iterdir()]
    if len(found) != np:
        raise RuntimeError(f"{len(found)} of {np} workers left a figure")
    return max(found)


def main() -> None:
    """Measure, then write memory-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np, "suites": {}}
    for name in options.suites:
        suite = SUITES[name]
        result["suites"][name] = measured(
            list(suite.arms),
            (OURS, AGAIN),
            options.blocks,
            lambda arm, suite=suite: _bytes(suite.arms[arm], options.np, suite.name),
            lambda size: f"{size / 1e6:.0f} MB",
        )
    saved.save(result, "memory", options.out)


if __name__ == "__main__":
    main()
