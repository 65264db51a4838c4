"""How long training waits for a checkpoint, ours beside others: `python -m benchmarks.checkpoint --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.checkpoint.arms import AGAIN, ARMS, MEGABYTES, OURS
from benchmarks.commands import printed_json
from benchmarks.overhead.arms import environment
from benchmarks.overhead.report import versions

_DEADLINE_S = 600.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--megabytes", type=int, nargs="*", default=list(MEGABYTES), help="of the state")
    parser.add_argument("--peers-venv", type=Path, help="from benchmarks.overhead.setup_peers; without it, no peers")
    parser.add_argument("--folder", type=Path, help="where to save (default: the folder for temporary files)")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _stall(name: str, megabytes: int, options: argparse.Namespace, others: dict[str, list[dict[str, float]]]) -> float:
    """Run an arm once. Raises `RuntimeError` if it failed or printed no result."""
    arm = ARMS[OURS if name == AGAIN else name]
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        argv = [arm.python(options.peers_venv), "-m", "benchmarks.checkpoint.worker", name, str(megabytes), scratch]
        found = printed_json(argv, "stall_seconds", environment(scratch), _DEADLINE_S)
    others.setdefault(name, []).append(found)
    return float(found["stall_seconds"])


def main() -> None:
    """Measure, then write checkpoint-<date>.json, .md and .svg."""
    options = _parse()
    names = [name for name, arm in ARMS.items() if options.peers_venv is not None or not arm.is_peer]
    result = saved.begun(versions(options.peers_venv))
    step = [sys.executable, "-m", "benchmarks.checkpoint.resnet50_step"]
    result["resnet50_step_seconds"] = printed_json(step, "step_seconds", environment("."), _DEADLINE_S)["step_seconds"]
    result["sizes"] = {}
    for megabytes in options.megabytes:
        runs: dict[str, list[dict[str, float]]] = {}
        print(f"{megabytes} MB")
        blocks = measured(
            names,
            (OURS, AGAIN),
            options.blocks,
            lambda name, size=megabytes, runs=runs: _stall(name, size, options, runs),  # type: ignore[misc]
            lambda seconds: f"{1e3 * seconds:.1f} ms",
        )
        result["sizes"][str(megabytes)] = {"blocks": blocks, "runs": runs}
    saved.save(result, "checkpoint", options.out)


if __name__ == "__main__":
    main()
