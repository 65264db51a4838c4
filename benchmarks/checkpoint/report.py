"""A result as a page and as a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import claims, saved
from benchmarks.checkpoint.arms import AGAIN, ARMS, OF_RESNET50, OURS
from benchmarks.checkpoint.resnet50_step import BATCH, SIDE
from benchmarks.checkpoint.worker import SAVES
from benchmarks.comparison import Comparison
from benchmarks.pictures import dots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = {name: arm.label for name, arm in ARMS.items()}
_OWN = ("hvdtrain_sync",)
_GOAL_OF_A_STEP = 0.05
_AXIS = "stall of ours / stall of theirs; left of 1, training waits less for ours"


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    intro = (
        f"One process with one compute thread saves a state of float32 arrays of 1 MB, {SAVES} times after a first "
        "save that is not counted, while it multiplies matrices. **Stall**: for so long the loop waits in the call. "
        "**Slower steps**: by so much the steps until the checkpoint is complete take longer than usual, together. "
        "**Complete**: from the call until the checkpoint is on disk. hvdtrain also computes SHA-256 and flushes files "
        "and folders to the disk; the others do neither."
    )
    head = saved.head("Saving a checkpoint", result)
    tables = [_table(size, found) for size, found in result["sizes"].items()]
    return "\n\n".join([head, intro, *_of_resnet50(result), *tables]) + "\n"


def picture(result: dict[str, Any]) -> Figure:
    """A panel for each size."""
    panels = []
    for size, found in result["sizes"].items():
        panel = dots.panel_of(f"{size} MB of state", Comparison(found["blocks"], OURS, AGAIN), _LABELS)
        panels.append(dots.Panel(panel.title, panel.rows, _AXIS))
    return dots.figure("Stall of a saving step; ours: hvdtrain, async", result, panels)


def _of_resnet50(result: dict[str, Any]) -> list[str]:
    """Its stall as a share of its step, if both were measured."""
    step, found = result.get("resnet50_step_seconds"), result["sizes"].get(str(OF_RESNET50))
    if step is None or found is None:
        return []
    share = Comparison(found["blocks"], OURS, AGAIN).median(OURS) / step
    verdict = "reached" if share <= _GOAL_OF_A_STEP else "not reached"
    return [
        f"A step of ResNet-50 takes {step:.1f} s here ({BATCH} pictures of {SIDE} × {SIDE}, one thread), and its state "
        f"with SGD's momentum is {OF_RESNET50} MB. **Goal**, a stall of at most {_GOAL_OF_A_STEP:.0%} of that step: "
        f"{share:.1%}, {verdict}."
    ]


def _table(size: str, found: dict[str, Any]) -> str:
    compared = Comparison(found["blocks"], OURS, AGAIN)
    peers = [name for name in compared.others if name not in _OWN]
    lines = [
        f"## {size} MB: {len(compared.blocks)} blocks of two runs",
        "",
        claims.not_a_win_among(compared, _LABELS, _OWN),
        claims.at_most(1.0, compared.ours_over(peers[0]), f"of the best of the others, {_LABELS[peers[0]]}"),
        "",
        f"Medians. {claims.how_to_read(compared)}",
        "",
        "| saved by | stall, ms | slower steps, ms | complete, ms | stall, ours / theirs |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in compared.arms:
        slower, complete = (_median(found["runs"][name], key) for key in ("slower_seconds", "durable_seconds"))
        cells = [f"{1e3 * value:.1f}" for value in (compared.median(name), slower, complete)]
        lines.append(f"| {' | '.join([_LABELS[name], *cells, claims.cell(compared, name)])} |")
    return "\n".join(lines)


def _median(runs: list[dict[str, float]], key: str) -> float:
    return statistics.median(run[key] for run in runs)
