"""A plan on the terminal."""

from typing import Final

from hvdtrain.algorithms.cost_model import LinkModel
from hvdtrain.cli.tables import print_table
from hvdtrain.doctor.units import in_bytes, in_rate, in_seconds
from hvdtrain.run.planning.candidates import NEEDS_LESS, Candidate, needs_least
from hvdtrain.run.planning.plan import Plan
from hvdtrain.run.planning.verify import RUNS, Verified

_HEADS: Final = ("way", "step", "exchange", "idle", "records/s", "memory", "worker-s per 1,000")


_IN_PARTS: Final = (
    "The whole model does not fit into the memory that a worker has here: its parts were measured one after the other."
)


def print_plan(plan: Plan) -> None:
    """What was measured, a table for each number of workers, the simulated jobs, and what was verified."""
    for line in _measured(plan):
        print(line)
    for workers, ways in plan.ways.items():
        _print_ways(workers, ways, plan.recommended[workers])
    if plan.simulated:
        _print_jobs(plan)
    if plan.verified:
        title = f"predicted, and measured here: the median of {RUNS} runs"
        print_table(title, ["way", "predicted", "measured", "from", "to", "error"], [*map(_row, plan.verified)])


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


def _print_ways(workers: int, ways: list[Candidate], best: Candidate | None) -> None:
    rows = []
    for one in ways:
        took = one.prediction
        shares = [f"{part / took.seconds:.0%}" for part in (took.exchange, took.idle)]
        memory = in_bytes(took.memory) + ("" if one.fits else ", does not fit")
        name = ("> " if one is best else "  ") + one.name
        rows.append([name, in_seconds(took.seconds), *shares, f"{one.records:,.4g}", memory, f"{1e3 * one.cost:,.3g}"])
    print_table(f"{workers:,} worker{'s' * (workers > 1)}", _HEADS, rows)
    if best is None:
        print(f"No way fits into the memory. {needs_least(ways)}; {NEEDS_LESS} need less.")


def _print_jobs(plan: Plan) -> None:
    rows = [
        [
            f"{workers:,}",
            f"{job.seconds / 3600:,.3g}",
            f"{job.goodput:.1%}",
            f"{job.stragglers / job.seconds:.1%}",
            f"{(job.repeated + job.restarting) / job.seconds:.1%}",
            f"{job.saving / job.seconds:.1%}",
            f"{job.failures:,}",
            in_seconds(job.interval) if job.interval < float("inf") else "",
        ]
        for workers, job in plan.simulated.items()
    ]
    heads = [
        "workers",
        "hours",
        "goodput",
        "slow workers",
        "failures",
        "saving",
        "failed",
        "checkpoint every",
    ]
    print_table("simulated: jobs of up to a week in the recommended way, with slow workers and failures", heads, rows)


def _row(one: Verified) -> list[str]:
    times = [in_seconds(value) for value in (one.predicted, one.median, min(one.measured), max(one.measured))]
    return [one.name, *times, f"{one.error:+.0%}"]
