"""From a killed worker to the next update, ours beside others: `python -m benchmarks.recovery --help`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.recovery import report
from benchmarks.recovery.arms import AGAIN, ARMS, OURS
from benchmarks.recovery.measure import seconds_to_next_step


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("-np", type=int, default=3, help="workers (3)")
    parser.add_argument("--blocks", type=int, default=5, help="ABBA blocks (5)")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure, then write recovery-<date>.json, .md and .svg."""
    options = _parse()
    names = [OURS, *(name for name in options.arms if name != OURS)]

    def run(name: str) -> float:
        return seconds_to_next_step(ARMS[name], options.np)

    begun = {**saved.begun(report.versions()), "np": options.np}
    blocks = measured(names, (OURS, AGAIN), options.blocks, run, "{:.2f} s".format)
    saved.save({**begun, "blocks": blocks}, "recovery", options.out)


if __name__ == "__main__":
    main()
