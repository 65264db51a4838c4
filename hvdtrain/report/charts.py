"""Charts: curves by steps or by time, with their numbers as a table, and bars of seconds divided into parts."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hvdtrain.history.curve import Bucket, Curve, Point
from hvdtrain.report import drawing, wording
from hvdtrain.report.drawing import box, drawn, empty_axes, few_ticks, swatch
from hvdtrain.report.markup import Markup, details, table, tag
from hvdtrain.units import in_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT: Final = 230
_ROWS: Final = 20  # of a table of numbers
_FEW_POINTS: Final = 40
_OUTLIERS: Final = 100  # times the median: a linear axis would show nothing else
_POINTS: Final = 4096  # of all lines of a chart together
_MOST_MARKS: Final = 60
_LEAST_SPAN: Final = 0.02  # of an axis, as a share of its values


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    curve: Curve
    series: int  # decides colour and dashes, from 0
    breaks: Sequence[int] = ()  # steps before which nothing was measured for a while, so that no line leads there


@dataclass(frozen=True)
class Axis:
    """What is along the bottom: its unit, how many steps of a curve that is, and how a step is written."""

    label: str
    unit: int = 1
    text: Callable[[int], str] = wording.count


STEPS: Final = Axis("step")


def time_axis(milliseconds: int) -> Axis:
    """Time since the start, in the unit that suits its length."""
    units = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds"))
    unit, name = next((pair for pair in units if milliseconds >= 2 * pair[0]), units[-1])

    def text(at: int) -> str:
        return f"{at / 1000:.1f} s" if at < 60_000 else wording.seconds(at / 1000)

    return Axis(f"{name} since the start", unit, text)


Marks = Mapping[str, Sequence[int]]
"""Name in the legend → the steps of vertical lines, such as restarts."""


def line_chart(
    title: str, lines: Sequence[Line], axis: Axis = STEPS, marks: Marks | None = None, of_several: bool = False
) -> Markup:
    """A figure with the curves, their legend and their numbers; a sentence where there is nothing to draw.

    Args: `of_several`: of the runs of a page, so that a single line has a legend too."""
    shown = [line for line in lines if line.curve]
    if not shown:
        return tag("figure", tag("figcaption", title), tag("p", "No value was finite.", class_="note"))
    shown_marks = {name: at for name, at in (marks or {}).items() if at}
    label = f"{title} by {axis.label}. {' '.join(_sentence(line, axis) for line in shown)}"
    picture = drawn(_HEIGHT, label, lambda figure: _draw(figure, shown, axis, shown_marks))
    return tag(
        "figure",
        tag("figcaption", title),
        _legend(shown, shown_marks) if len(shown) > 1 or shown_marks or of_several else None,
        picture,
        [tag("p", note, class_="note") for note in _notes(lines, axis)],
        details("Numbers", [_numbers(f"{title}: {line.name}", line, axis) for line in shown]),
    )


def _sentence(line: Line, axis: Axis) -> str:
    """The facts of a curve in a sentence."""
    whole = line.curve.whole()
    if whole is None:
        return ""
    (first, begin), (last, end) = whole.first, whole.last
    if first == last:
        return f"{line.name}: {wording.amount(end)} at {axis.text(last)}."
    extremes = ", ".join(
        f"{word} {wording.amount(value)} at {axis.text(step)}"
        for word, (step, value) in (("lowest", whole.least), ("highest", whole.greatest))
    )
    course = f"from {wording.amount(begin)} at {axis.text(first)} to {wording.amount(end)} at {axis.text(last)}"
    return f"{line.name}: {course}; {extremes}."


def _notes(lines: Sequence[Line], axis: Axis) -> list[str]:
    """What a reader of the picture has to know."""
    notes = []
    if any(bucket.count > 1 for line in lines for bucket in line.curve.buckets()):
        notes.append("Bold lines are means of neighbouring values; thin ones keep every lowest and highest value.")
    for line in lines:
        if (missed := line.curve.missed) is not None:
            where = axis.text(missed.first) + (f" to {axis.text(missed.last)}" if missed.count > 1 else "")
            notes.append(f"{line.name}: {wording.plural(missed.count, 'value')} not finite, at {axis.label} {where}.")
    return notes


def _draw(figure: "Figure", lines: Sequence[Line], axis: Axis, marks: Marks) -> None:
    axes = empty_axes(figure, _HEIGHT)
    for steps in marks.values():
        for at in steps[:_MOST_MARKS]:
            axes.axvline(at / axis.unit, color=drawing.MARK, linewidth=1, dashes=(2, 2), zorder=1)
    for line in reversed(lines):  # the first one above the others
        _draw_curve(axes, line, axis, _POINTS // len(lines) // 4)
    _scale(axes, [point for line in lines for point in line.curve.points(_ROWS)])
    axes.set_xlabel(axis.label, color=drawing.MUTED)
    axes.xaxis.set_major_formatter(lambda value, _: in_count(value))


def _draw_curve(axes: "Axes", line: Line, axis: Axis, buckets: int) -> None:
    kept = line.curve.buckets(buckets)
    points = [point for bucket in kept for point in bucket.points()]
    style: dict[str, Any] = {"color": drawing.colour(line.series), "solid_capstyle": "round"}
    dashes = drawing.dashes(line.series)
    if any(bucket.count > 1 for bucket in kept):
        axes.plot(*_xy(points, line, axis), linewidth=0.8, alpha=0.35, zorder=2, **style)
        points = [((bucket.first[0] + bucket.last[0]) // 2, bucket.mean) for bucket in kept]
    if dashes:
        style["dashes"] = [length / 2 for length in dashes]  # matplotlib takes them in widths of the line
    if len(points) <= _FEW_POINTS:
        style |= {"marker": "o", "markersize": 3.5 if len(points) > 1 else 6}
    axes.plot(*_xy(points, line, axis), linewidth=2, zorder=3, **style)


def _xy(points: Sequence[Point], line: Line, axis: Axis) -> tuple[list[float], list[float]]:
    """Places and values; at a break there is a value that is none."""
    places: list[float] = []
    values: list[float] = []
    breaks = sorted(line.breaks, reverse=True)
    for step, value in points:
        while breaks and breaks[-1] <= step:
            places.append(breaks.pop() / axis.unit)
            values.append(math.nan)
        places.append(step / axis.unit)
        values.append(value)
    return places, values


def _scale(axes: "Axes", points: Sequence[Point]) -> None:
    """Logarithmic where a few values are so large that the others would all lie on the bottom."""
    values = [value for _, value in points]
    if min(values) > 0 and max(values) > _OUTLIERS * statistics.median(values):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(lambda *_: "")
        if math.log10(max(values) / min(values)) < 2:
            axes.yaxis.set_major_locator(few_ticks())
    else:
        axes.yaxis.set_major_locator(few_ticks())
        middle, room = (min(values) + max(values)) / 2, _LEAST_SPAN * max(map(abs, values)) / 2
        if max(values) - min(values) < 2 * room:  # else ticks differ in digits that no label has
            axes.set_ylim(middle - room, middle + room)
    axes.yaxis.set_major_formatter(lambda value, _: in_count(value))


def _legend(lines: Sequence[Line], marks: Marks) -> Markup:
    entries = [(swatch(drawing.colour(line.series), drawing.dashes(line.series)), line.name) for line in lines]
    entries += [(swatch(drawing.MARK, (2, 2), width=1), name) for name in marks]
    return tag("ul", (tag("li", sign, name) for sign, name in entries), class_="legend")


def _numbers(caption: str, line: Line, axis: Axis) -> Markup:
    """At most `_ROWS` rows, which have all extremes."""
    buckets = line.curve.buckets(_ROWS)
    label = axis.label if axis is STEPS else "time"
    if all(bucket.count == 1 for bucket in buckets):
        rows = [(axis.text(bucket.first[0]), wording.amount(bucket.last[1])) for bucket in buckets]
        return table(caption, (label, "value"), rows, visible=True)
    many = [
        (
            _span(bucket, axis),
            *(wording.amount(v) for v in (bucket.mean, bucket.least[1], bucket.greatest[1], bucket.last[1])),
        )
        for bucket in buckets
    ]
    return table(caption, (label, "mean", "lowest", "highest", "last"), many, visible=True)


def _span(bucket: Bucket, axis: Axis) -> str:
    first, last = axis.text(bucket.first[0]), axis.text(bucket.last[0])
    return first if first == last else f"{first} – {last}".replace(" ", "\N{NO-BREAK SPACE}")


def bar_chart(
    title: str, label: str, bars: Mapping[str, Mapping[str, float]], parts: Mapping[str, int], note: Markup
) -> Markup:
    """A figure with a bar of seconds for each of `bars`, divided into parts.

    Args:
        label: its facts in a sentence, for screen readers.
        bars: by name, the seconds of each part.
        parts: the series, from 0, which decides the colour, of each part.
        note: what follows the picture.
    """
    height = round(30 + 26 * len(bars) + drawing.BOTTOM)

    def draw(figure: "Figure") -> None:
        axes = empty_axes(figure, height)
        axes.grid(visible=False)
        axes.grid(axis="x", color=drawing.GRID, linewidth=1)
        places = [-place for place in range(len(bars))]
        begin = [0.0] * len(bars)
        for part, series in parts.items():
            lengths = [seconds.get(part, 0.0) for seconds in bars.values()]
            colour = drawing.colour(series)
            axes.barh(places, lengths, left=begin, height=0.62, color=colour, edgecolor=drawing.PAGE)
            begin = [a + b for a, b in zip(begin, lengths, strict=True)]
        axes.set_yticks(places, list(bars))
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: in_count(value))
        axes.set_xlabel("seconds", color=drawing.MUTED)

    entries = [tag("li", box(drawing.colour(series)), part) for part, series in parts.items()]
    legend = tag("ul", entries, class_="legend")
    return tag("figure", tag("figcaption", title), legend, drawn(height, label, draw), note)
