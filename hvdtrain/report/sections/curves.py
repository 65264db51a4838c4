"""Curves of measures, learning rate and norms: of one run, or of several on top of each other."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from hvdtrain.history.curve import Curve
from hvdtrain.history.metrics import SPEED, MetricsHistory
from hvdtrain.report import wording
from hvdtrain.report.axes import side_by_side
from hvdtrain.report.line_chart import Line, Marks, line_chart, time_axis
from hvdtrain.report.markup import Markup, join, tag
from hvdtrain.report.record import RunRecord

_MACHINE: Final = ("memory", "device_memory", "device_use")
_LAST: Final = ("lr", "grad_norm", "grad_norm_peak", SPEED, *_MACHINE)
_MOST: Final = 24  # charts of a page


def section(runs: Sequence[RunRecord]) -> Markup:
    """All curves over updates."""
    charts = list(_charts_of_one(runs[0]) if len(runs) == 1 else _charts_of_several(runs))
    if len(runs) > 1 and (speed := speed_chart(runs)) is not None:
        charts = [*charts[: _MOST - 1], speed, *charts[_MOST - 1 :]]
    if not charts:
        return tag("p", "There are no values to draw: metrics.jsonl has no lines of training or validation.")
    more = len(charts) - _MOST
    note = tag("p", f"{wording.plural(more, 'more measure')} of metrics.jsonl are not drawn.") if more > 0 else None
    return join(side_by_side(*charts[:_MOST]), note)


def speed_chart(runs: Sequence[RunRecord]) -> Markup | None:
    """Samples a second over the time since the start; over updates where lines have no times."""
    names = [run.short if len(runs) > 1 else "training" for run in runs]
    lines = [Line(names[n], run.metrics.speed, n, _breaks(run.metrics)) for n, run in enumerate(runs)]
    spans = [whole.last[0] for line in lines if (whole := line.curve.whole()) is not None]
    if spans:
        marks = _restart_times(runs[0].metrics) if len(runs) == 1 else []
        return line_chart("Throughput, samples per second", lines, time_axis(max(spans)), marks)
    by_step = [run.metrics.training.get(SPEED, Curve()) for run in runs]
    lines = [replace(line, curve=curve, breaks=()) for line, curve in zip(lines, by_step, strict=True) if curve]
    return line_chart("Throughput, samples per second", lines) if lines else None


def _charts_of_one(run: RunRecord) -> Iterator[Markup]:
    metrics, marks = run.metrics, _restart_steps(run.metrics)
    for name in _measures([metrics]):
        both = [("training", metrics.training.get(name)), ("validation", metrics.validation.get(name))]
        lines = [Line(split, curve, n) for n, (split, curve) in enumerate(both) if curve is not None]
        yield line_chart(wording.title_of(name), lines, marks=marks)
    if (curve := metrics.training.get("lr")) is not None:
        yield line_chart("Learning rate", [Line("learning rate", curve, 0)], marks=marks)
    norms = [("mean", metrics.training.get("grad_norm")), ("peak", metrics.training.get("grad_norm_peak"))]
    lines = [Line(name, curve, n) for n, (name, curve) in enumerate(norms) if curve is not None]
    if lines:
        yield line_chart("Gradient norm", lines, marks=marks)
    for name in _MACHINE:
        if (curve := metrics.training.get(name)) is not None:
            yield line_chart(wording.title_of(name), [Line("largest", curve, 0)], marks=marks)


def _charts_of_several(runs: Sequence[RunRecord]) -> Iterator[Markup]:
    every = [run.metrics for run in runs]
    for name in _measures(every):
        for split in ("validation", "training"):
            yield from _overlaid(
                f"{wording.title_of(name)} in {split}", runs, [getattr(m, split).get(name) for m in every]
            )
    for name in ("lr", "grad_norm", *_MACHINE):
        yield from _overlaid(wording.title_of(name), runs, [metrics.training.get(name) for metrics in every])


def _overlaid(title: str, runs: Sequence[RunRecord], curves: Sequence[Curve | None]) -> Iterator[Markup]:
    lines = [Line(run.short, curve, n) for n, (run, curve) in enumerate(zip(runs, curves, strict=True)) if curve]
    if lines:
        yield line_chart(title, lines)


def _measures(every: Sequence[MetricsHistory]) -> list[str]:
    """The names of all measures, the loss first."""
    names = [name for metrics in every for curves in (metrics.training, metrics.validation) for name in curves]
    return sorted(dict.fromkeys(name for name in names if name not in _LAST), key=lambda name: name != "loss")


def _restart_steps(metrics: MetricsHistory) -> list[Marks]:
    return [
        Marks("restart", [h.step for h in metrics.events if h.kind == "resume" and not h.after_end]),
        Marks("continued", [h.step for h in metrics.events if h.kind == "resume" and h.after_end]),
    ]


def _breaks(metrics: MetricsHistory) -> list[int]:
    return [at for marks in _restart_times(metrics) for at in marks.at]


def _restart_times(metrics: MetricsHistory) -> list[Marks]:
    begin = metrics.began
    if begin is None:
        return []
    found = [h for h in metrics.events if h.kind == "resume" and h.at is not None]
    return [
        Marks(name, [int((h.at - begin) * 1000) for h in found if h.after_end == after and h.at is not None])
        for name, after in (("restart", False), ("continued", True))
    ]
