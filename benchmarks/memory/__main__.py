"""The most memory that a worker holds while it trains: `python -m benchmarks.memory --help`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.commands import printed_json
from benchmarks.memory import report
from benchmarks.memory.arms import SUITES
from benchmarks.memory.worker import VARIABLE
from benchmarks.step.arms import AGAIN, OURS, Arm, Suite, environment

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


def peak_bytes(arm: Arm, np: int, model: str) -> float:
    """The most that one of the workers held. Raises `RuntimeError` if the command failed."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as peaks:
        environ = {**environment(cache), VARIABLE: peaks}
        printed_json(arm.under("benchmarks.memory.worker").argv(np, model, _COUNTS), "iterations", environ, _DEADLINE_S)
        found = [float(path.read_text()) for path in Path(peaks).iterdir()]
    if len(found) != (1 if arm.alone else np):
        raise RuntimeError(f"{arm.label}: {len(found)} workers left a figure")
    return max(found)


def main() -> None:
    """Measure, then write memory-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np, "suites": {}}
    for name in options.suites:
        result["suites"][name] = _blocks(SUITES[name], options)
    saved.save(result, "memory", options.out)


def _blocks(suite: Suite, options: argparse.Namespace) -> list[dict[str, float]]:
    return measured(
        list(suite.arms),
        (OURS, AGAIN),
        options.blocks,
        lambda arm: peak_bytes(suite.arms[arm], options.np, suite.name),
        lambda size: f"{size / 1e6:.0f} MB",
    )


if __name__ == "__main__":
    main()
