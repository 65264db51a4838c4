"""One measurement for growing numbers of workers or clients, of our code and perhaps of an earlier version's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, saved
from benchmarks.commands import REPOSITORY

Measure = Callable[[Path, int, Path], dict[str, Any]]
"""Given a checkout, a number, and a folder that it makes and removes: the costs."""


def measure_and_save(name: str, description: str | None, sizes: Sequence[int], measure: Measure) -> None:
    """Read the command line of `python -m benchmarks.NAME`, measure, then write NAME-<date>.json, .md and .svg."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, which is measured beside ours")
    parser.add_argument("--folder", type=Path, default=Path(f"/tmp/{name}-benchmark"), help="where files are made")
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="numbers of workers or clients")
    parser.add_argument("--out", type=Path, default=saved.RESULTS, help="folder for the result")
    options = parser.parse_args()
    codes = {"now": REPOSITORY, **({"before": options.before.resolve()} if options.before else {})}
    before = options.before and machine.commit_of(options.before)
    costs: dict[str, dict[str, Any]] = {version: {} for version in codes}
    result = {**saved.begun(saved.installed(["numpy"])), "before": before, "costs": costs}
    for version, code in codes.items():
        for size in options.sizes:
            found = costs[version][str(size)] = measure(code, size, options.folder)
            print(version, size, found, flush=True)
    saved.save(result, name, options.out)
