"""Curves of measures, learning rate and norms: of one run, or of several on top of each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from hvdtrain.history.curve import Curve
from hvdtrain.history.metrics import SPEED, MetricsHistory
from hvdtrain.history.run_events import RunEvent
from hvdtrain.measured import METRICS
from hvdtrain.report import wording
from hvdtrain.report.charts import Line, Marks, line_chart, time_axis
from hvdtrain.report.drawing import side_by_side
from hvdtrain.report.markup import Markup, join, tag
from hvdtrain.report.record import RunRecord
from hvdtrain.set_names import in_set

_BUILT_IN: Final = frozenset(metric.name for metric in METRICS)
_CHARTS: Final = [
    (title, [(metric.line, metric.name) for metric in group])
    for title, group in groupby((metric for metric in METRICS if metric.line), key=lambda metric: metric.title)
]
"""Of built-in metrics: title, and for each line its name and its metric."""

_KINDS: Final = {"restart": False, "continued": True}
"""Of resumed runs: what a mark is called, and whether the start before had ended."""

_MOST: Final = 24  # charts of a page


def section(runs: Sequence[RunRecord]) -> Markup:
    """All curves over updates."""
    of_measures = list(_measures_of_one(runs[0]) if len(runs) == 1 else _measures_of_several(runs))
    built_in = list(_built_in_of_one(runs[0]) if len(runs) == 1 else _built_in_of_several(runs))
    if len(runs) > 1 and (speed := speed_chart(runs)) is not None:
        built_in.append(speed)
    room = max(1, _MOST - len(built_in))
    charts = [*of_measures[:room], *built_in]
    if not charts:
        return tag("p", "There are no values to draw: metrics.jsonl has no lines of training or validation.")
    is_cut = len(of_measures) > room or any(run.metrics.is_cut for run in runs)
    note = tag("p", "metrics.jsonl has the values of more measures, which are not drawn.") if is_cut else None
    return join(side_by_side(*charts), note)


def speed_chart(runs: Sequence[RunRecord]) -> Markup | None:
    """Samples a second over the time since the start; over updates where lines have no times."""
    names = [run.short if len(runs) > 1 else "training" for run in runs]
    breaks = [[at for places in _restart_times(run.metrics).values() for at in places] for run in runs]
    lines = [Line(names[n], run.metrics.speed, n, breaks[n]) for n, run in enumerate(runs)]
    spans = [whole.last[0] for line in lines if (whole := line.curve.whole()) is not None]
    if spans:
        marks = _restart_times(runs[0].metrics) if len(runs) == 1 else None
        return line_chart(wording.title_of(SPEED), lines, time_axis(max(spans)), marks)
    by_step = [run.metrics.training.get(SPEED, Curve()) for run in runs]
    lines = [replace(line, curve=curve, breaks=()) for line, curve in zip(lines, by_step, strict=True) if curve]
    return line_chart(wording.title_of(SPEED), lines) if lines else None


def _marks(metrics: MetricsHistory) -> Marks:
    return {name: [event.step for event in _resumes(metrics, after_end)] for name, after_end in _KINDS.items()}


def _measures_of_one(run: RunRecord) -> Iterator[Markup]:
    metrics = run.metrics
    of_sets = {in_set(name, measure): measure for name in metrics.sets for measure in metrics.training}
    for name in _measures([metrics]):
        if name not in of_sets:
            yield line_chart(wording.title_of(name), _lines(_both(metrics, name)), marks=_marks(metrics))


def _built_in_of_one(run: RunRecord) -> Iterator[Markup]:
    metrics = run.metrics
    for title, lines in _CHARTS:
        if curves := _lines({line: metrics.training.get(name) for line, name in lines}):
            yield line_chart(title, curves, marks=_marks(metrics))


def _both(metrics: MetricsHistory, measure: str) -> dict[str, Curve | None]:
    """The curves of a measure in training and in each set of validation."""
    sets = {f"validation {name}": metrics.validation.get(in_set(name, measure)) for name in metrics.sets}
    return {"training": metrics.training.get(measure), "validation": metrics.validation.get(measure), **sets}


def _lines(curves: Mapping[str, Curve | None]) -> list[Line]:
    return [Line(name, curve, number) for number, (name, curve) in enumerate(curves.items()) if curve is not None]


def _measures_of_several(runs: Sequence[RunRecord]) -> Iterator[Markup]:
    every = [run.metrics for run in runs]
    for name in _measures(every):
        for split in ("validation", "training"):
            yield from _overlaid(
                f"{wording.title_of(name)} in {split}", runs, [getattr(m, split).get(name) for m in every]
            )


def _built_in_of_several(runs: Sequence[RunRecord]) -> Iterator[Markup]:
    for title, ((_, name), *_) in _CHARTS:
        yield from _overlaid(title, runs, [run.metrics.training.get(name) for run in runs])


def _overlaid(title: str, runs: Sequence[RunRecord], curves: Sequence[Curve | None]) -> Iterator[Markup]:
    lines = [Line(run.short, curve, n) for n, (run, curve) in enumerate(zip(runs, curves, strict=True)) if curve]
    if lines:
        yield line_chart(title, lines, of_several=True)


def _measures(every: Sequence[MetricsHistory]) -> list[str]:
    """The names of all measures, the loss first."""
    names = [name for metrics in every for curves in (metrics.training, metrics.validation) for name in curves]
    return sorted(dict.fromkeys(name for name in names if name not in _BUILT_IN), key=lambda name: name != "loss")


def _restart_times(metrics: MetricsHistory) -> Marks:
    begin = metrics.began
    if begin is None:
        return {}
    return {
        name: [int((e.at - begin) * 1000) for e in _resumes(metrics, after_end) if e.at is not None]
        for name, after_end in _KINDS.items()
    }


def _resumes(metrics: MetricsHistory, after_end: bool) -> list[RunEvent]:
    return [event for event in metrics.events if event.kind == "resume" and event.after_end == after_end]
