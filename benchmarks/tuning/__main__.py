"""Steps with what a run chooses at its start, beside the defaults: `python -m benchmarks.tuning --help`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.blocks import measured
from benchmarks.commands import printed_json
from benchmarks.step.arms import environment
from benchmarks.step.measure import DEADLINE_S
from benchmarks.step.workload import MODELS
from benchmarks.tuning import report
from benchmarks.tuning.arms import AGAIN, ARMS, MODEL_NAMES, OURS, counts_of


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("-np", type=int, default=2, help="workers (2)")
    parser.add_argument("--blocks", type=int, default=5, help="ABBA blocks (5)")
    parser.add_argument("--models", nargs="*", default=list(MODEL_NAMES), choices=MODEL_NAMES)
    parser.add_argument("--out", type=Path, default=saved.RESULTS)
    return parser.parse_args()


def _measure_model(model: str, options: argparse.Namespace) -> dict[str, Any]:
    print(MODELS[model].label, flush=True)
    chosen: list[Any] = []

    def run(name: str) -> float:
        """Seconds of a step in the median iteration. Nothing is remembered from one run to the next."""
        argv = ARMS[name].argv(options.np, model, counts_of(model))
        with tempfile.TemporaryDirectory() as cache:
            found = printed_json(argv, "iterations", environment(cache), DEADLINE_S)
        if name == OURS:
            chosen.append(found["tuned"])
        return report.median_seconds(model, found["iterations"])

    blocks = measured(list(ARMS), (OURS, AGAIN), options.blocks, run, lambda seconds: f"{1e3 * seconds:.3g} ms")
    return {"blocks": blocks, "chosen": chosen}


def main() -> None:
    """Measure, then write tuning-<date>.json, .md and .svg."""
    options = _parse()
    result = {**saved.begun(report.versions()), "np": options.np}
    result["models"] = {name: _measure_model(name, options) for name in options.models}
    saved.save(result, "tuning", options.out)


if __name__ == "__main__":
    main()
