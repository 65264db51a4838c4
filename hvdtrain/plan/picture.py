"""A plan as a picture: how fast each machine trains, for each number of workers, one line for each way to train.

Machines that only serve parameters count too.
"""

from typing import TYPE_CHECKING, Any, Final

from hvdtrain.plan.predicted_plan import Plan
from hvdtrain.plan.svg_results import drawn_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES: Final = ("ring", "ZeRO-1", "ZeRO-2", "hierarchical ring", "pipeline", "naive split", "parameter server")
_STYLES: Final = ("o-", "s-", "^-", "D-", "v--", "x--", "+:")


def drawn(plan: Plan, title: str) -> bytes:
    """An SVG."""

    alone = _alone(plan)

    def draw(figure: Any, axes: Any) -> None:
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xscale("log", base=2)
        for name, style in zip(_LINES, _STYLES, strict=True):
            _line(axes, plan, name, style, alone)
        axes.set_ylim(0, None)
        axes.set_xlabel("workers")
        axes.set_ylabel("speed of a machine, of one without communication")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)

    return drawn_svg(8, 4, draw)


def _line(axes: "Axes", plan: Plan, name: str, style: str, alone: float) -> None:
    """The best way of this kind for each number of workers; large open marks where it does not fit."""
    points = {}
    for workers, ways in plan.ways.items():
        if own := [one for one in ways if one.name.startswith(name)]:
            best = min(own, key=lambda one: one.cost)
            points[workers] = best.fits, 1 / (best.cost * alone)
    if points:
        (line,) = axes.plot(list(points), [speed for _, speed in points.values()], style, lw=1.2, ms=4, label=name)
        missing = {workers: speed for workers, (fits, speed) in points.items() if not fits}
        axes.plot(list(missing), list(missing.values()), style[0], color=line.get_color(), mfc="none", ms=9)


def _alone(plan: Plan) -> float:
    """Records a second of one worker that has nobody to wait for, with the batch of the smallest number of workers."""
    work, workers = plan.work, min(plan.ways)
    whole, records = work.whole, plan.ways[workers][0].records * plan.ways[workers][0].prediction.seconds / workers
    return records / (work.fixed + records * (whole.forward + whole.backward) + work.update)
