"""A result as a page and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.memory.arms import SUITES
from benchmarks.pictures import dots
from benchmarks.step.arms import AGAIN, OURS
from benchmarks.step.report import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["markdown", "picture", "versions"]

_OF = "ddp_views"
_GOAL = 1.0
_AXIS = "memory of ours / memory of theirs; left of 1, ours holds less"


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"Peak memory of a worker, {result['np']} workers on one machine", result)
    return "\n\n".join([head, *(_table(name, blocks) for name, blocks in result["suites"].items())]) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each network."""
    panels = []
    for name, blocks in result["suites"].items():
        about, compared = SUITES[name], Comparison(blocks, OURS, AGAIN)
        panel = dots.panel_of(about.title, compared, about.labels, dict.fromkeys({_OF} & {*compared.others}, _GOAL))
        panels.append(dots.Panel(panel.title, panel.rows, _AXIS))
    return dots.figure("Peak memory of a worker; ours: hvdtrain under mpirun", result, panels)


def _table(name: str, blocks: list[dict[str, float]]) -> str:
    compared, about = Comparison(blocks, OURS, AGAIN), SUITES[name]
    goal = [claims.at_most(_GOAL, compared.ours_over(_OF), "of DDP's with bucket views")] if _OF in about.arms else []
    has_others = any(arm not in about.own for arm in compared.others)
    lines = [
        f"## {about.title}: {len(blocks)} blocks of two runs",
        "",
        *([claims.not_a_win_among(compared, about.labels, about.own), *goal, ""] if has_others else []),
        f"Resident memory with all libraries and shared pages, of the worker that held most, in 10⁶ bytes; the median "
        f"of the blocks. Below 1, ours holds less. A against A: {claims.shown(compared.noise)}; a ratio in brackets is "
        "not beyond that and chance.",
        "",
        f"| launcher | workers run | MB | {'ours / theirs' if has_others else 'hvdtrain / this'} |",
        "| --- | --- | ---: | ---: |",
    ]
    for arm_name in compared.arms:
        arm, size = about.arms[arm_name], compared.median(arm_name) / 1e6
        lines.append(f"| {arm.label} | {arm.runs} | {size:.0f} | {claims.cell(compared, arm_name)} |")
    return "\n".join(lines)
