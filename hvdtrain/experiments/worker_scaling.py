"""Scaling: the same step on several numbers of workers, each started as a job of its own; measured and predicted."""

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import HvdtrainError
from hvdtrain.experiments.measured_run import printed_by
from hvdtrain.plan.cost_model import LinkModel, ring_seconds
from hvdtrain.plan.plan_files import drawn_svg, write_results
from hvdtrain.version import versions

FIXED_GLOBAL: Final = "fixed global batch"
FIXED_OWN: Final = "fixed batch of a worker"
_ALONE: Final = "part of the global batch"


@dataclass(frozen=True)
class ScalingRequest:
    """What is asked for."""

    sizes: Sequence[int]  # numbers of workers, from 1
    batch: int  # records: of the global batch, or of each worker
    repeats: int  # runs of each kind, which take turns
    iters: int  # timed iterations of a run
    starter: Sequence[str]  # words that start {np} workers
    train: Sequence[str]  # options of `hvdtrain train`


@dataclass(frozen=True)
class Point:
    """A number of workers."""

    mode: str  # `FIXED_GLOBAL` or `FIXED_OWN`
    workers: int
    rates: Sequence[float]  # records a second of all workers, in each run
    efficiency: float  # of the median, as a share of that many times one worker's
    predicted: float | None  # the same by the ring model; None for one worker

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def measured_points(request: ScalingRequest, tell: Callable[[str], None]) -> list[Point]:
    """Run everything. Args: `tell`: receives a line for each run. Raises HvdtrainError: a run failed."""
    reports: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for repeat in range(request.repeats):
        for size in request.sizes:
            for mode in (FIXED_GLOBAL, FIXED_OWN) if size > 1 else (FIXED_GLOBAL,):  # with one worker both are the same
                report = _step(request, size, request.batch * (size if mode == FIXED_OWN else 1))
                reports.setdefault((mode, size), []).append(report)
                tell(f"run {repeat + 1}, {mode}, {size} workers: {report['total']['mean']:,.1f} records/s")
            if size > 1:  # one worker's part of the global batch, without the others
                reports.setdefault((_ALONE, size), []).append(_step(request, 1, max(1, request.batch // size)))
    link, most = None, max(request.sizes)
    if most > 1:
        model = _json_of(_started(request, most, ["bench", "allreduce", "--json", "--seconds", "3"]))["model"]
        link = LinkModel(model["latency"], model["bandwidth"] or float("inf"))
    return [_point(mode, size, reports, link) for mode in (FIXED_GLOBAL, FIXED_OWN) for size in request.sizes]


def _point(
    mode: str, size: int, reports: Mapping[tuple[str, int], list[dict[str, Any]]], link: LinkModel | None
) -> Point:
    one_worker = reports[FIXED_GLOBAL, 1]
    rates, base = _rates(reports[mode, size] if size > 1 else one_worker), statistics.median(_rates(one_worker))
    efficiency = statistics.median(rates) / (size * base)
    if size == 1 or link is None:
        return Point(mode, size, rates, efficiency, None)
    alone = reports[_ALONE, size] if mode == FIXED_GLOBAL else one_worker
    batch, exchange = alone[0]["batch_size"], ring_seconds(4 * alone[0]["parameters"], size, link)
    predicted = batch / (batch / statistics.median(_rates(alone)) + exchange)
    return Point(mode, size, rates, efficiency, predicted / base)


def _rates(reports: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(report["total"]["mean"]) for report in reports]


def _step(request: ScalingRequest, size: int, batch: int) -> dict[str, Any]:
    counts = ["--num-warmup-batches", "5", "--num-iters", str(request.iters), "--json"]
    words = ["bench", "step", *request.train, "--global-batch-size", str(batch), *counts]
    return _json_of(_started(request, size, words))


def _started(request: ScalingRequest, size: int, words: Sequence[str]) -> list[str]:
    words_alone = [sys.executable, "-m", "hvdtrain", *words]
    if size == 1:
        return words_alone
    starter = [word.replace("{np}", str(size)) for word in request.starter]
    if starter[0] == "hvdtrain":  # its -- is followed by hvdtrain's own words
        return [sys.executable, "-m", *starter, *words]
    return [*starter, *words_alone]


def _json_of(argv: Sequence[str]) -> dict[str, Any]:
    """The object that the command prints in one line, behind which launchers may put the rank."""
    lines = [line for line in printed_by(argv).splitlines() if '"format"' in line]
    if not lines:
        raise HvdtrainError(
            "A run that was to be measured printed no result.",
            "Nothing can be compared.",
            f"try it by itself: {shlex.join(argv)}",
        )
    report: dict[str, Any] = json.loads(lines[-1][lines[-1].index("{") :])
    return report


def scaling_rows(points: Sequence[Point]) -> list[list[str]]:
    """Workers, median, least and most records a second, efficiency, and the ring model's, of each point."""
    return [
        [
            str(point.workers),
            f"{point.rate:,.1f}",
            f"{min(point.rates):,.1f} to {max(point.rates):,.1f}",
            f"{point.efficiency:.0%}",
            "" if point.predicted is None else f"{point.predicted:.0%}",
        ]
        for point in points
    ]


def write_scaling(points: Sequence[Point], request: ScalingRequest, folder: Path) -> str:
    """See `write_results`."""

    def draw(_: Any, axes: Any) -> None:
        """Efficiency by workers: measured with all runs, predicted as dashes."""
        for mode, colour in ((FIXED_GLOBAL, "#a02c1e"), (FIXED_OWN, "#34495e")):
            curve = [point for point in points if point.mode == mode]
            sizes, values = [point.workers for point in curve], [point.efficiency for point in curve]
            spans = [
                [point.efficiency * (1 - min(point.rates) / point.rate) for point in curve],
                [point.efficiency * (max(point.rates) / point.rate - 1) for point in curve],
            ]
            axes.errorbar(sizes, values, spans, fmt="o-", color=colour, capsize=3, ms=4, label=f"{mode}, measured")
            predicted = [1.0 if point.predicted is None else point.predicted for point in curve]
            axes.plot(sizes, predicted, "--", color=colour, lw=1, label=f"{mode}, ring model")
        axes.set_ylim(0, None)
        axes.set_xlabel("workers")
        axes.set_ylabel("efficiency")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xticks(sorted({point.workers for point in points}))
        axes.legend(frameon=False, fontsize=8)

    content = {"points": [asdict(point) for point in points], "request": asdict(request), "versions": versions()}
    return write_results(folder, "scaling", content, drawn_svg(7, 3.6, draw))
