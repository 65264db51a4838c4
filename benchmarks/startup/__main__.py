"""From command to first step, ours beside others: `python -m benchmarks.startup --help`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.startup import report
from benchmarks.startup.arms import AGAIN, ARMS, OURS
from benchmarks.startup.measure import seconds_to_first_step


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks with a warm page cache (7)")
    parser.add_argument("--cold-blocks", type=int, default=3, help="blocks with an emptied one, root only (3)")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    names = [OURS, *(name for name in options.arms if name != OURS)]
    for name in names:
        seconds_to_first_step(ARMS[name], options.np)  # a first run, so that everything is in the page cache

    def blocks(count: int, cold: bool) -> list[dict[str, float]]:
        def run(name: str) -> float:
            return seconds_to_first_step(ARMS[name], options.np, cold)

        return measured(names, (OURS, AGAIN), count, run, "{:.2f} s".format)

    return {
        **saved.begun(report.versions()),
        "np": options.np,
        "warm": blocks(options.blocks, cold=False),
        "cold": blocks(options.cold_blocks, cold=True),
    }


def main() -> None:
    """Measure, then write startup-<date>.json, .md and .svg."""
    options = _parse()
    result = _measure(options)
    saved.save(result, "startup", options.out)


if __name__ == "__main__":
    main()
