"""What the loop around a training step costs, ours beside others: `python -m benchmarks.overhead --help`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import saved
from benchmarks.commands import printed_json
from benchmarks.overhead import report
from benchmarks.overhead.arms import AGAIN, ARMS, OURS, Arm, environment

_DEADLINE_S = 300.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--peers-venv", type=Path, help="from benchmarks.overhead.setup_peers; without it, no peers")
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _seconds_per_step(arm: Arm, peers: Path | None) -> float:
    """Run an arm once. Raises `RuntimeError` if it failed or printed no result."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = arm.argv(peers, Path(scratch, "run"))
        found = printed_json(argv, "seconds_per_step", environment(scratch), _DEADLINE_S)
    return float(found["seconds_per_step"])


def _block(names: list[str], peers: Path | None) -> dict[str, float]:
    """Mean of two runs of each arm, in the order A B C … C B A."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in [*names, *reversed(names)]:
        times[name].append(_seconds_per_step(ARMS[OURS if name == AGAIN else name], peers))
    print({name: [f"{1e6 * value:.0f} µs" for value in values] for name, values in times.items()}, flush=True)
    return {name: sum(values) / len(values) for name, values in times.items()}


def main() -> None:
    """Measure, then write overhead-<date>.json and .md."""
    options = _parse()
    names = [name for name, arm in ARMS.items() if options.peers_venv is not None or not arm.is_peer] + [AGAIN]
    result = saved.begun(report.versions(options.peers_venv))
    turned = [names[i % len(names) :] + names[: i % len(names)] for i in range(options.blocks)]
    result["blocks"] = [_block(order, options.peers_venv) for order in turned]
    saved.save(result, "overhead", options.out, report.markdown)


if __name__ == "__main__":
    main()
