"""A result as a page and as a picture."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks import claims, saved
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots
from benchmarks.step.report import versions
from benchmarks.step.workload import MODELS
from benchmarks.tuning.arms import AGAIN, ARMS, DEFAULTS, OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["markdown", "median_seconds", "picture", "versions"]

_NOTHING: Final = "nothing (one way to cut the gradients, or steps that take too long to look at)"
_LABELS: Final = {name: arm.label for name, arm in ARMS.items()}


def median_seconds(model: str, speeds: Sequence[float]) -> float:
    """Seconds of a step, from records a second in each iteration."""
    return MODELS[model].batch / statistics.median(speeds)


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    head = saved.head(f"Steps with what a run chooses at its start, {result['np']} workers on one machine", result)
    intro = (
        "hvdtrain under mpirun, in torch. Each run of `--tune auto` measures anew; each run is timed after as many "
        "steps as Horovod's autotuning takes to choose, which has fewer and shorter looks than by default: six at each "
        "kind of setting, of five steps. It looks at the cycle time and the cache of responses; hvdtrain has fixed the "
        "fusion threshold. One compute thread for each worker. **Goal**: no slower than the defaults by more than A "
        "against A."
    )
    return "\n\n".join([head, intro, *(_table(name, found) for name, found in result["models"].items())]) + "\n"


def _table(name: str, found: dict[str, Any]) -> str:
    compared = Comparison(found["blocks"], OURS, AGAIN)
    lines = [
        f"## {MODELS[name].label}: {len(compared.blocks)} blocks of two runs",
        "",
        claims.not_a_win_among(compared, _LABELS),
        claims.at_most(compared.noise.reach, compared.ours_over(DEFAULTS), "of the defaults"),
        "",
        f"{_chosen(found['chosen'])} Milliseconds a step are the median of the blocks. {claims.how_to_read(compared)}",
        "",
        "| hvdtrain | ms a step | tuned / this |",
        "| --- | ---: | ---: |",
    ]
    for arm in compared.arms:
        lines.append(f"| {_LABELS[arm]} | {1e3 * compared.median(arm):.3g} | {claims.cell(compared, arm)} |")
    return "\n".join(lines)


def _chosen(runs: Sequence[dict[str, Any] | None]) -> str:
    counts = Counter(_NOTHING if one is None else f"{one['bucket_cap_mb']:g} MiB" for one in runs)
    return "Chosen: " + ", ".join(f"{what} in {count} runs" for what, count in counts.most_common()) + "."


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each network."""
    panels = []
    for name, found in result["models"].items():
        compared = Comparison(found["blocks"], OURS, AGAIN)
        panels.append(dots.panel_of(MODELS[name].label, compared, _LABELS, {DEFAULTS: compared.noise.reach}))
    return dots.figure("A training step; ours: hvdtrain --tune auto", result, panels)
