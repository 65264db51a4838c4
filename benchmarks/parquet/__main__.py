"""Read Parquet files in each order, in turns: `python -m benchmarks.parquet --help`."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, saved
from benchmarks.blocks import both_runs
from benchmarks.commands import REPOSITORY, printed_json
from benchmarks.parquet import tables

_DEADLINE_S: Final = 300.0
_WORKER: Final = REPOSITORY / "benchmarks" / "parquet" / "worker.py"

ARMS: Final = ("none", "block", "global", "global_on_disk", "pyarrow")
EARLIER: Final = ("earlier_block", "earlier_global")


def measure(arm: str, folder: Path, earlier: Path | None, seconds: float) -> dict[str, Any]:
    """One run of an arm on one core, in a process of its own."""
    root = earlier if arm in EARLIER else REPOSITORY
    command = [sys.executable, str(_WORKER), str(folder), arm.removeprefix("earlier_"), str(seconds)]
    core = str(max(os.sched_getaffinity(0)))
    environ = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return printed_json(["taskset", "--cpu-list", core, *command], "rows", environ, _DEADLINE_S, folder)


def main() -> None:
    """Measure, then write parquet-<date>.json, .md and .svg."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parquet", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/tmp/parquet-benchmark"), help="folder for the data, 0.7 GB")
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version, which is measured beside ours")
    parser.add_argument("--out", type=Path, default=saved.RESULTS, help="folder for the result")
    parser.add_argument("--blocks", type=int, default=5, help="each has two runs of every arm")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a run reads")
    options = parser.parse_args()
    tables.write_all(options.data)
    arms = [*ARMS, *(EARLIER if options.earlier else ())]
    result = {
        **saved.begun(saved.installed(["pyarrow", "numpy"])),
        "earlier": options.earlier and machine.commit_of(options.earlier),
        "options": {"seconds": options.seconds},
        "tables": {},
    }
    for name in tables.SHAPES:
        result["tables"][name] = []
        for turn in range(options.blocks):
            run = partial(measure, folder=options.data / name, earlier=options.earlier, seconds=options.seconds)
            runs = both_runs(arms, turn, run)
            rates = {arm: f"{sum(run['rows'] / run['cpu_s'] for run in both) / 2:,.0f}" for arm, both in runs.items()}
            print(name, turn, rates, flush=True)
            result["tables"][name].append(runs)
    saved.save(result, "parquet", options.out)


if __name__ == "__main__":
    main()
