"""What the loop around a training step costs, ours beside others: `python -m benchmarks.overhead --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.commands import printed_json
from benchmarks.overhead import report, where
from benchmarks.overhead.arms import AGAIN, ARMS, OURS, Arm, environment
from benchmarks.overhead.timing_alone import seconds_per_step, share_of_looks

_DEADLINE_S = 300.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--peers-venv", type=Path, help="from benchmarks.overhead.setup_peers; without it, no peers")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _seconds_per_step(arm: Arm, peers: Path | None) -> float:
    """Run an arm once. Raises `RuntimeError` if it failed or printed no result."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = arm.argv(peers, Path(scratch, "run"))
        found = printed_json(argv, "seconds_per_step", environment(scratch), _DEADLINE_S)
    return float(found["seconds_per_step"])


def main() -> None:
    """Measure, then write overhead-<date>.json, .md and .svg."""
    options = _parse()
    names = [name for name in options.arms if options.peers_venv is not None or not ARMS[name].is_peer]
    result = saved.begun(report.versions(options.peers_venv))
    result["blocks"] = measured(
        names,
        (OURS, AGAIN),
        options.blocks,
        lambda name: _seconds_per_step(ARMS[name], options.peers_venv),
        lambda seconds: f"{1e6 * seconds:.0f} µs",
    )
    result["timing_alone"] = {"seconds_per_step": seconds_per_step(), "share_of_looks": share_of_looks()}
    keras = [sys.executable, "-m", "benchmarks.overhead.timing_alone_keras"]
    result["timing_alone_keras"] = printed_json(keras, "seconds_per_step", environment("."), _DEADLINE_S)
    if options.peers_venv is not None:
        result["where"] = where.sampled(options.peers_venv)
    saved.save(result, "overhead", options.out)


if __name__ == "__main__":
    main()
