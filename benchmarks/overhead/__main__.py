"""What the loop around a training step costs, ours beside others: `python -m benchmarks.overhead --help`."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.overhead import report
from benchmarks.overhead.arms import AGAIN, ARMS, OURS, Arm, environment

REPOSITORY = Path(__file__).resolve().parents[2]
_RESULTS = REPOSITORY / "benchmarks" / "results"
_DEADLINE_S = 300.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--peers-venv", type=Path, help="from benchmarks.overhead.setup_peers; without it, no peers")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    return parser.parse_args()


def _seconds_per_step(arm: Arm, peers: Path | None) -> float:
    """Run an arm once. Raises `RuntimeError` if it failed or printed no result."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = arm.argv(peers, Path(scratch, "run"))
        done = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=environment(scratch),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if '"seconds_per_step"' in line]
    if done.returncode != 0 or len(lines) != 1:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    seconds: float = json.loads(lines[0])["seconds_per_step"]
    return seconds


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
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": report.versions(options.peers_venv),
    }
    turned = [names[i % len(names) :] + names[: i % len(names)] for i in range(options.blocks)]
    result["blocks"] = [_block(order, options.peers_venv) for order in turned]
    result["machine"]["load_at_end"] = machine.describe()["load"]
    path = options.out / f"overhead-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(report.markdown(result))
    print(f"wrote {path} and .md")


if __name__ == "__main__":
    main()
