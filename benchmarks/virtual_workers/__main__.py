"""Steps with virtual workers beside steps without: `python -m benchmarks.virtual_workers --help`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.virtual_workers import report
from benchmarks.virtual_workers.arms import AGAIN, PLAIN, SUITES, arms_of, mean, run


def main() -> None:
    """Measure, then write virtual_workers-<date>.json, .md and .svg."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.virtual_workers", description=__doc__)
    parser.add_argument("--blocks", type=int, default=3, help="ABBA blocks (3)")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    options = parser.parse_args()
    result = saved.begun(report.versions())
    result["suites"] = {
        str(workers): measured(
            arms_of(workers),
            (PLAIN, AGAIN),
            options.blocks,
            partial(run, workers),
            lambda figures: f"{1e3 * figures.seconds:.0f} ms",
            mean,
        )
        for workers in SUITES
    }
    saved.save(result, "virtual_workers", options.out)


if __name__ == "__main__":
    main()
