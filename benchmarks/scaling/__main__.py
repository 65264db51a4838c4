"""From one worker to two, on one machine and over limited links: `python -m benchmarks.scaling --help`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import saved
from benchmarks.scaling import over_links, report, unconnected
from benchmarks.step.arms import SUITES


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--suites", nargs="*", default=list(unconnected.SUITE_NAMES), choices=unconnected.SUITE_NAMES)
    parser.add_argument("--counts", type=int, nargs=3, metavar=("WARM-UP", "BATCHES", "ITERATIONS"), help="for a look")
    parser.add_argument("--rates", type=int, nargs="*", default=list(over_links.RATES), help="Mbit/s; needs root")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure, then write scaling-<date>.json, .md and .svg."""
    options = _parse()
    result = saved.begun(report.versions())
    result["links"] = {str(rate): over_links.measure(rate, options.blocks) for rate in options.rates}
    result["steps"] = {
        name: unconnected.blocks(name, options.counts or SUITES[name].model.counts, options.blocks)
        for name in options.suites
    }
    saved.save(result, "scaling", options.out)


if __name__ == "__main__":
    main()
