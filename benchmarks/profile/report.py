"""A result as a page and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import saved
from benchmarks.pictures import style
from benchmarks.profile.samples import PARTS
from benchmarks.step.arms import SUITES
from benchmarks.step.report import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["markdown", "picture", "versions"]

_NAMES = tuple(name for name, _, _ in PARTS)
_COLOURS = (
    "#a02c1e",
    "#34495e",
    "#d98c5f",
    "#8fa7b8",
    "#c7d3da",
    "#5d7f4e",
    "#97b38a",
    "#b59f3b",
    "#777777",
    "#cccccc",
)
_DARK = _COLOURS[:2]
_SHOWN = 0.04  # smaller parts get no number in the picture


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    lines = [
        saved.head(f"What bounds a training step, {result['np']} workers on one machine", result),
        "",
        "Shares of the processor time of rank 0 with all its threads, without its start, by perf. Milliseconds are of "
        "one step, in another run, with Horovod's timeline: waiting is what rank 0 waits for gradients after its "
        "backward pass; negotiating and summing happen beside the backward pass as far as they can.",
        "",
        f"| | {' | '.join(SUITES[name].title for name in result['suites'])} |",
        f"| --- |{' ---: |' * len(result['suites'])}",
    ]
    found = result["suites"].values()
    for part in _NAMES:
        lines.append(_row(part, [f"{100 * one['shares'][part]:.0f} %" for one in found]))
    lines.append(_row("**a step**, ms", [f"{1e3 * one['seconds']['step']:.3g}" for one in found]))
    lines.append(_row("waiting for gradients, ms", [f"{1e3 * one['seconds']['allreduce']:.2g}" for one in found]))
    lines.append(_row("messages", [f"{one['messages']['allreduces']:.0f}" for one in found]))
    for what in ("negotiating", "reducing", "copying"):
        name = {"reducing": "summing", "copying": "of that, copies into buffers"}.get(what, what)
        lines.append(_row(f"{name}, ms", [f"{1e3 * one['messages'][what]:.2g}" for one in found]))
    return "\n".join(lines) + "\n"


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def picture(result: dict[str, Any]) -> Figure:
    """A bar for each network, whose parts are shares of processor time."""
    names = [*result["suites"]]
    title = f"Where the processor time of a step goes: hvdtrain under mpirun\n{style.subtitle(result)}"
    drawn = style.empty_figure(title, 8.5, 1.9 + 0.45 * len(names))
    axes = drawn.subplots()
    style.plain(axes)
    left = [0.0] * len(names)
    for part, colour in zip(_NAMES, _COLOURS, strict=True):
        widths = [result["suites"][name]["shares"][part] for name in names]
        axes.barh(range(len(names)), widths, 0.7, left=left, color=colour, label=part)
        for place, width in enumerate(widths):
            if width >= _SHOWN:
                text = f"{100 * width:.0f}"
                ink = "white" if colour in _DARK else "black"
                axes.text(
                    left[place] + width / 2, place, text, ha="center", va="center", color=ink, fontsize=style.SMALL
                )
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(names)), [SUITES[name].title for name in names], fontsize=style.SMALL)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    drawn.legend(loc="outside lower left", ncols=4, fontsize=style.SMALL - 1, frameon=False)
    return drawn
