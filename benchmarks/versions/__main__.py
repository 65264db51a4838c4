"""This checkout beside another one of hvdtrain, such as an older one: `python -m benchmarks.versions --help`."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.commands import REPOSITORY, printed_json
from benchmarks.versions import report
from benchmarks.versions.report import CASES

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


def _blocks(words: tuple[str, ...], checkouts: Mapping[str, Path], count: int) -> list[dict[str, float]]:
    """Seconds of each checkout in each block."""
    return measured(
        list(checkouts),
        (report.OURS, report.AGAIN),
        count,
        lambda arm: _seconds(checkouts[arm], words),
        lambda seconds: f"{seconds:.4g} s",
    )


def _commit(checkout: Path) -> str:
    argv = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def main() -> None:
    """Measure, and write versions-<date>.json, .md and .svg after each case."""
    options = _parse()
    checkouts = {report.OTHER: options.other.absolute(), report.OURS: REPOSITORY}
    result = saved.begun(saved.installed(("torch", "tensorflow", "horovod", "numpy")))
    result["commits"] = {arm: _commit(checkout) for arm, checkout in checkouts.items()}
    result["cases"] = {}
    path = saved.new_path(result, "versions", options.out)
    for name in options.cases:
        print(name, flush=True)
        result["cases"][name] = _blocks(CASES[name], checkouts, options.blocks)
        saved.write(result, path)


if __name__ == "__main__":
    main()
