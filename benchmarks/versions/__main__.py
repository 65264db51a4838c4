"""This checkout beside another one of hvdtrain, such as an older one: `python -m benchmarks.versions --help`."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.commands import REPOSITORY, printed_json
from benchmarks.statistics import Ratio, ratio_of

CASES: Mapping[str, tuple[str, ...]] = {
    "step of the MLP, torch": ("step", "mlp", "50", "100", "10"),
    "step of 20 × Linear(1024), torch": ("step", "linear20", "3", "5", "4"),
    "step of ResNet-18, torch": ("step", "resnet18", "3", "5", "3"),
    "step of the MLP, TensorFlow": ("step", "mlp-tensorflow", "50", "100", "10"),
    "step of ResNet-18, TensorFlow": ("step", "resnet18-tensorflow", "3", "5", "3"),
    "hvdtrain launch local to the first step, torch": ("start", "local"),
    "mpirun to the first step, torch": ("start", "mpirun"),
    "an epoch of 20,480 TFRecords of 3 KB, shuffled": ("loader", "shuffled"),
}
"""What is measured, and the words that tell `probe.py`."""
ARMS = ("other", "this", "again")
"""The other checkout, this one, and this one once more in each block: what chance does."""
_PROBE = Path(__file__).parent / "probe.py"
_DEADLINE_S = 600.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout, in which `make setup` has run")
    parser.add_argument("--blocks", type=int, default=7, help="ABBA blocks (7)")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _seconds(checkout: Path, words: tuple[str, ...]) -> float:
    argv = [str(checkout / ".venv" / "bin" / "python"), str(_PROBE), *words]
    found = printed_json(argv, "seconds", os.environ, _DEADLINE_S, checkout)
    return float(found["seconds"])


def _block(words: tuple[str, ...], checkouts: Mapping[str, Path], first: int) -> dict[str, float]:
    """Mean seconds of two runs of each arm, in the order A B C C B A."""
    order = [*ARMS[first % 3 :], *ARMS[: first % 3]]
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm in [*order, *reversed(order)]:
        times[arm].append(_seconds(checkouts[arm], words))
    print({arm: [f"{seconds:.4g}" for seconds in runs] for arm, runs in times.items()}, flush=True)
    return {arm: statistics.mean(runs) for arm, runs in times.items()}


def _commit(checkout: Path) -> str:
    argv = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _ratio(blocks: list[dict[str, float]], arm: str, base: str) -> Ratio:
    return ratio_of([block[arm] for block in blocks], [block[base] for block in blocks])


def _markdown(result: dict[str, Any]) -> str:
    lines = [
        saved.head("One checkout beside another", result),
        "",
        f"Commit {result['commits']['other']} before, {result['commits']['this']} after. A ratio below 1: what is here "
        "now takes less time. A ratio in brackets is not beyond A against A.",
        "",
        "| what | before, s | after, s | after of before | A against A | blocks |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, blocks in result["cases"].items():
        noise = _ratio(blocks, "again", "this")
        before, after = (statistics.median(block[arm] for block in blocks) for arm in ("other", "this"))
        ratio = saved.shown(_ratio(blocks, "this", "other"), noise)
        lines.append(f"| {name} | {before:.4g} | {after:.4g} | {ratio} | {saved.shown(noise)} | {len(blocks)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, then write versions-<date>.json and .md."""
    options = _parse()
    checkouts = {"other": options.other.absolute(), "this": REPOSITORY, "again": REPOSITORY}
    result = saved.begun(saved.installed(("torch", "tensorflow", "horovod", "numpy")))
    result["commits"] = {arm: _commit(checkouts[arm]) for arm in ("other", "this")}
    result["cases"] = {}
    for name in options.cases:
        print(name, flush=True)
        result["cases"][name] = [_block(CASES[name], checkouts, number) for number in range(options.blocks)]
        saved.save(result, "versions", options.out, _markdown)


if __name__ == "__main__":
    main()
