"""Times against sizes: one line for each arm, with its own marker and its name at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from benchmarks.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS: Final = ("o-", "s--", "^-.", "D:", "v-")
_APART: Final = 0.055
"""Of the axes' height: how far names are from each other at least."""


def figure(title: str, result: dict[str, Any], curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Seconds by bytes for each arm, ours first, on logarithmic axes."""
    drawn = style.empty_figure(f"{title}\n{style.subtitle(result)}", 8.5, 5)
    axes = drawn.subplots()
    style.plain(axes)
    axes.grid(axis="y", which="major", alpha=0.25)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, seconds in enumerate(curves.values()):
        width = 2.0 if number == 0 else 1.0
        axes.plot(list(seconds), list(seconds.values()), _MARKS[number], color=_colour(number), lw=width, ms=5)
    sizes = list(next(iter(curves.values())))
    axes.set_xticks(sizes[::2], [_bytes(size) for size in sizes[::2]])
    axes.yaxis.set_major_formatter(lambda value, _: _seconds(value))
    axes.set_ylabel("time of one sum", fontsize=style.SMALL)
    axes.set_xlabel("size of the tensor", fontsize=style.SMALL)
    _name_ends(axes, {name: list(seconds.items())[-1] for name, seconds in curves.items()})
    return drawn


def _name_ends(axes: Axes, ends: Mapping[str, tuple[int, float]]) -> None:
    """Beside the axes with the lines' markers, in the order of their ends, and not over each other."""
    last = float("inf")
    for number, name in sorted(enumerate(ends), key=lambda pair: -ends[pair[1]][1]):
        height = axes.transAxes.inverted().transform(axes.transData.transform(ends[name]))[1]
        last = min(height, last - _APART)
        mark, colour = _MARKS[number][0], _colour(number)
        axes.plot(1.03, last, mark, transform=axes.transAxes, color=colour, markersize=5, clip_on=False)
        axes.annotate(
            name,
            ends[name],
            (1.045, last),
            textcoords="axes fraction",
            fontsize=style.SMALL,
            fontweight="bold" if number == 0 else "normal",
            verticalalignment="center",
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "linewidth": 0.5, "color": "0.5"},
        )


def _colour(number: int) -> str:
    return style.OURS if number == 0 else style.THEIRS


def _bytes(size: int) -> str:
    for unit, bytes_of_unit in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_of_unit:
            return f"{size // bytes_of_unit} {unit}"
    return f"{size} B"


def _seconds(seconds: float) -> str:
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999:
            return f"{seconds * factor:g} {unit}"
    return f"{seconds:g} s"
