"""Predictions of `hvdtrain plan` beside what the same steps take here: `python -m benchmarks.plan --help`."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.commands import REPOSITORY
from benchmarks.plan import report
from benchmarks.plan.report import MODELS
from benchmarks.step.arms import environment, mpirun_argv

_DEADLINE_S = 1200.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement (30)")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def verified_plan(model: str, np: int, seconds: float) -> dict[str, Any]:
    """plan.json of one model. Raises `RuntimeError` if the command failed."""
    with tempfile.TemporaryDirectory() as scratch:
        pages = [path.read_text() for path in sorted((REPOSITORY / "docs").glob("*.md"))]
        (Path(scratch) / "docs.txt").write_text("\n".join(pages))
        options = [word.replace("SCRATCH", scratch) for word in MODELS[model].options]
        plan = ["-m", "hvdtrain", "plan", "--verify", "--workers", str(np), "--seconds", str(seconds)]
        argv = [*mpirun_argv(np), *plan, "--out", f"{scratch}/plan", *options]
        done = subprocess.run(
            argv,
            cwd=scratch,
            env=environment(scratch),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads((Path(scratch) / "plan" / "plan.json").read_text())
    return found


def main() -> None:
    """Measure, then write plan-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np, "seconds": options.seconds, "models": {}}
    for model in options.models:
        result["models"][model] = verified_plan(model, options.np, options.seconds)
        print(*(f"{one['name']}: {one['error']:+.0%}" for one in result["models"][model]["verified"]), sep="; ")
    saved.save(result, "plan", options.out)


if __name__ == "__main__":
    main()
