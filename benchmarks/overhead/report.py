"""A result as a page."""

from __future__ import annotations

import statistics
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import saved
from benchmarks.overhead.arms import AGAIN, ARMS, BARE, OURS
from benchmarks.overhead.problem import BATCH, STEPS, WARM_UP
from benchmarks.statistics import Ratio, ratio_of

_PEERS = ("lightning", "accelerate")


def versions(peers: Path | None) -> dict[str, str]:
    """Of what the arms import. `peers`: their environment, if there is one."""
    found = saved.installed(("torch", "numpy"))
    if peers is not None:
        paths = [str(path) for path in peers.glob("lib/python*/site-packages")]
        found |= {
            d.name: d.version for d in metadata.distributions(path=paths) if d.name in ("lightning", "accelerate")
        }
    return found


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    blocks = result["blocks"]
    noise = _ratio(blocks, AGAIN)
    lines = [
        saved.head("The loop around a step, one process", result),
        "",
        f"A linear model of ten parameters, batch {BATCH}, {STEPS} steps after {WARM_UP}; {len(blocks)} blocks of two "
        f"runs. Times are medians of the blocks. A ratio above 1: it takes longer than ours. A against A: "
        f"{saved.shown(noise)}; a ratio in brackets is not beyond that.",
        "",
        "| loop | µs a step | more than the bare loop | of ours |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name in sorted((name for name in blocks[0] if name != AGAIN), key=lambda name: _median(blocks, name)):
        ratio = _ratio(blocks, name)
        shown = "1" if name == OURS else saved.shown(ratio, noise)
        more = statistics.median(block[name] - block[BARE] for block in blocks)
        lines.append(f"| {ARMS[name].label} | {1e6 * _median(blocks, name):.0f} | {1e6 * more:.0f} | {shown} |")
    return "\n".join(lines) + "\n"


def _median(blocks: list[dict[str, float]], name: str) -> float:
    return float(np.median([block[name] for block in blocks]))


def _ratio(blocks: list[dict[str, float]], name: str) -> Ratio:
    return ratio_of([block[name] for block in blocks], [block[OURS] for block in blocks])
