"""What bounds a training step, by perf and Horovod's timeline: `python -m benchmarks.profile --help`. Linux only."""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.commands import printed_json
from benchmarks.profile import report, samples, timeline
from benchmarks.profile.worker import DELAY, FILE
from benchmarks.step.arms import OURS, SUITES, Arm, Suite, environment

_DEADLINE_S = 600.0
_START_S = {"torch": 5.0, "tensorflow": 12.0}
"""Longer than a start takes: imports, and in TensorFlow compiling."""
_SAMPLED_S = 12.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    options = parser.parse_args()
    if shutil.which("perf") is None:
        parser.error("perf is not installed, which takes the samples; Debian has it as linux-perf")
    return options


def _profile(suite: Suite, np: int) -> dict[str, Any]:
    warm, steps, iterations = suite.model.counts
    arm = suite.arms[OURS]
    with tempfile.TemporaryDirectory() as scratch:
        environ, perf, events = environment(scratch), Path(scratch, "perf"), Path(scratch, "timeline.json")

        def run(arm: Arm, iterations: int, own: dict[str, str]) -> dict[str, float]:
            argv = arm.argv(np, suite.name, (warm, steps, iterations))
            seconds: dict[str, float]
            seconds, *_ = printed_json(argv, "iterations", {**environ, **own}, _DEADLINE_S)["seconds_per_step"]
            return seconds

        seconds = run(arm, iterations, {"HOROVOD_TIMELINE": str(events)})
        start = _START_S[suite.framework]
        usual = run(arm, iterations, {})["step"]  # the timeline takes time, of a small step the larger part
        enough = math.ceil((start + _SAMPLED_S) / (steps * usual))
        run(arm.under("benchmarks.profile.worker"), enough, {FILE: str(perf), DELAY: str(int(1000 * start))})
        messages = timeline.read(events, warm + steps * iterations)
        return {"seconds": seconds, "messages": messages._asdict(), "shares": samples.read(perf)}


def main() -> None:
    """Measure, then write profile-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np, "suites": {}}
    for name in options.suites:
        result["suites"][name] = _profile(SUITES[name], options.np)
        print(name, result["suites"][name], flush=True)
    saved.save(result, "profile", options.out)


if __name__ == "__main__":
    main()
