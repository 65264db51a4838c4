"""A plan on the terminal."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from hvdtrain.cli.tables import Column, print_fitting
from hvdtrain.plan.candidates import NEEDS_LESS, Candidate, needs_least
from hvdtrain.plan.check_predictions import RUNS, Verified
from hvdtrain.plan.cost_model import LinkModel
from hvdtrain.plan.predicted_plan import Plan
from hvdtrain.units import in_bytes, in_rate, in_seconds

_IN_PARTS: Final = (
    "The whole model does not fit into the memory that a worker has here: its parts were measured one after the other."
)


def print_plan(plan: Plan, workers: int, all_tables: bool = False, width: int = 100) -> None:
    """What was measured, the ways for one number of workers, and what was verified.

    Args:
        workers: whose ways are shown, if the plan has that number; else those of its smallest one.
        all_tables: show the ways for every number of workers, and the simulated jobs, too.
        width: of the terminal.
    """
    for line in _measured(plan):
        _print_wrapped(line, width)
    shown = list(plan.ways) if all_tables else [workers if workers in plan.ways else min(plan.ways)]
    for count in shown:
        _print_ways(count, plan.ways[count], plan.recommended[count], width)
    if all_tables and plan.simulated:
        _print_wrapped("simulated: jobs of up to a week in the recommended way, with slow workers and failures", width)
        print_fitting(_job_columns(plan), width)
    if plan.verified:
        _print_wrapped(f"predicted, and measured here: the median of {RUNS} runs", width)
        print_fitting(_verified_columns(plan.verified), width)
    if not all_tables:
        rest = len(plan.ways) - 1
        others = f"the ways for {rest} other number{'s' * (rest > 1)} of workers, and " if rest else ""
        _print_wrapped(f"--all-tables prints {others}simulated jobs; plan.json contains all of it", width)


def _print_wrapped(text: str, width: int) -> None:
    print(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))


def _measured(plan: Plan) -> list[str]:
    work, whole, cluster = plan.work, plan.work.whole, plan.cluster
    links = [f"links: {_link(cluster.inner)}"]
    if cluster.outer != cluster.inner:
        links.append(f"between hosts {_link(cluster.outer)}")
    if cluster.passing is not None:
        links.append(f"between stages {_link(cluster.passing)}")
    return [
        f"model: {in_bytes(whole.weights)} of weights in {len(work.layers)} parts; a record takes "
        f"{in_seconds(whole.forward)} forward and {in_seconds(whole.backward)} backward, an update "
        f"{in_seconds(work.update)}, and each step {in_seconds(work.fixed)} besides",
        "; ".join(links),
        f"memory: {in_bytes(cluster.memory)} for each of {cluster.workers_per_host} workers of a host",
        *([_IN_PARTS] * plan.in_parts),
    ]


def _link(link: LinkModel) -> str:
    return f"{in_seconds(link.latency)} and {in_rate(link.bandwidth)}"


def _print_ways(workers: int, ways: list[Candidate], best: Candidate | None, width: int) -> None:
    print(f"{workers:,} worker{'s' * (workers > 1)}")
    print_fitting(_way_columns(ways, best), width)
    marks = ["> is recommended"] * (best is not None) + ["! does not fit into the memory"] * any(
        not w.fits for w in ways
    )
    _print_wrapped("; ".join(marks), width)
    if best is None:
        _print_wrapped(f"No way fits into the memory. {needs_least(ways)}; {NEEDS_LESS} need less.", width)


def _way_columns(ways: Sequence[Candidate], best: Candidate | None) -> list[Column]:
    """What a narrow terminal shows last are the names and times."""
    numbers = partial(_numbers, ways)
    return [
        Column("  way", [f"{_mark(way, best)} {way.name}" for way in ways], is_whole=True),
        numbers("step", None, lambda way: in_seconds(way.prediction.seconds)),
        numbers("exchange", 2, lambda way: f"{way.prediction.exchange / way.prediction.seconds:.0%}"),
        numbers("idle", 1, lambda way: f"{way.prediction.idle / way.prediction.seconds:.0%}"),
        numbers("records/s", 4, lambda way: _rounded(way.records)),
        numbers("memory", 3, lambda way: in_bytes(way.prediction.memory)),
        numbers("worker-s per 1,000", 0, lambda way: _rounded(1e3 * way.cost)),
    ]


def _numbers(rows: Iterable[Any], head: str, priority: int | None, cell: Callable[[Any], str]) -> Column:
    return Column(head, [cell(row) for row in rows], is_number=True, priority=priority)


def _mark(way: Candidate, best: Candidate | None) -> str:
    if way is best:
        return ">"
    return " " if way.fits else "!"


def _rounded(value: float) -> str:
    """Three digits or more, never with an exponent: "0.0123", "98.4", "12,345"."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _job_columns(plan: Plan) -> list[Column]:
    numbers = partial(_numbers, plan.simulated.values())
    return [
        Column("workers", [f"{workers:,}" for workers in plan.simulated], is_number=True),
        numbers("hours", 4, lambda job: f"{job.seconds / 3600:,.3g}"),
        numbers("goodput", None, lambda job: f"{job.goodput:.1%}"),
        numbers("slow", 2, lambda job: f"{job.stragglers / job.seconds:.1%}"),
        numbers("failures", 3, lambda job: f"{(job.repeated + job.restarting) / job.seconds:.1%}"),
        numbers("saving", 1, lambda job: f"{job.saving / job.seconds:.1%}"),
        numbers("failed", 0, lambda job: f"{job.failures:,}"),
        numbers("save every", 5, lambda job: in_seconds(job.interval) if job.interval < float("inf") else ""),
    ]


def _verified_columns(verified: Sequence[Verified]) -> list[Column]:
    numbers = partial(_numbers, verified)
    return [
        Column("  way", [f"  {way.name}" for way in verified], is_whole=True),
        numbers("predicted", 2, lambda way: in_seconds(way.predicted)),
        numbers("measured", None, lambda way: in_seconds(way.median)),
        numbers("from", 1, lambda way: in_seconds(min(way.measured))),
        numbers("to", 0, lambda way: in_seconds(max(way.measured))),
        numbers("error", 3, lambda way: f"{way.error:+.0%}"),
    ]
