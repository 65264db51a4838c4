"""The sum of a tensor over workers, 4 B to 256 MiB: `python -m benchmarks.allreduce --help`."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from benchmarks import saved
from benchmarks.allreduce import report
from benchmarks.blocks import measured
from benchmarks.commands import printed_json

_DEADLINE_S = 300.0
_BIN = Path(sys.executable).parent
_ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
_MPIRUN = [str(_BIN / "mpirun"), *_ROOT, "--oversubscribe", "--bind-to", "none", "-np"]
_LAUNCHERS = {
    "mpirun": (_MPIRUN, [sys.executable, "-m"]),
    "gloo": ([str(_BIN / "horovodrun"), "--gloo", "-np"], [sys.executable, "-m"]),
    "torchrun": ([str(_BIN / "torchrun"), "--nproc-per-node"], ["-m"]),
}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allreduce", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _run(arm: report.Arm, np: int) -> dict[int, float]:
    """Bytes → seconds. Raises `RuntimeError` if the command failed or printed no result."""
    launcher, python = _LAUNCHERS[arm.launcher]
    argv = [*launcher, str(np), *python, "benchmarks.allreduce.arm", arm.library]
    found = printed_json(argv, "allreduce_seconds", {**os.environ, "OMP_NUM_THREADS": "1"}, _DEADLINE_S)
    return {int(size): float(seconds) for size, seconds in found["allreduce_seconds"].items()}


def _mean(runs: list[dict[int, float]]) -> dict[int, float]:
    """For each size."""
    return {size: statistics.mean(run[size] for run in runs) for size in runs[0]}


def main() -> None:
    """Measure, then write allreduce-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np}
    result["blocks"] = measured(
        list(report.ARMS),
        (report.OURS, report.AGAIN),
        options.blocks,
        lambda name: _run(report.ARMS[name], options.np),
        lambda seconds: f"{1e6 * seconds[4]:.0f} µs",
        _mean,
    )
    saved.save(result, "allreduce", options.out)


if __name__ == "__main__":
    main()
