"""A result as a page and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots
from benchmarks.recovery.arms import AGAIN, ARMS, OURS
from benchmarks.statistics import estimate_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("horovod", "torch", "numpy", "scikit-learn")
_LABELS = {name: arm.label for name, arm in ARMS.items()}
_GOAL_S = 3.0
_GOAL_SHARE = 0.5


def versions() -> dict[str, str]:
    """Of what the arms import."""
    return saved.installed(_PACKAGES)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    compared = Comparison(result["blocks"], OURS, AGAIN)
    lines = [
        saved.head(f"From a killed worker to the next update, {result['np']} workers on one machine", result),
        "",
        claims.not_a_win_among(compared, _LABELS, ("waits", "restart")),
        claims.at_most(_GOAL_S, estimate_of(compared.times(OURS)), "seconds"),
        claims.at_most(_GOAL_SHARE, compared.ours_over("restart"), "of a restart of all workers"),
        "",
        f"Seconds are the median of {len(compared.blocks)} blocks of two runs. {claims.how_to_read(compared)}",
        "",
        "| the job | seconds | ours / theirs |",
        "| --- | ---: | ---: |",
    ]
    for name in compared.arms:
        lines.append(f"| {_LABELS[name]} | {compared.median(name):.2f} | {claims.cell(compared, name)} |")
    return "\n".join(lines) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """One panel."""
    panel = dots.panel_of("One of the workers is killed", Comparison(result["blocks"], OURS, AGAIN), _LABELS)
    return dots.figure(f"From a killed worker to the next update, {result['np']} workers", result, [panel])
