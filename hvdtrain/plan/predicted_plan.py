"""A plan: what was measured, what follows from it for each number of workers, and what is recommended."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.plan.candidates import Candidate, candidates, recommended
from hvdtrain.plan.check_predictions import Verified
from hvdtrain.plan.cluster_simulation import Disturbances, Simulated, simulated
from hvdtrain.plan.cost_model import Cluster, Layout, Workload

_SIMULATED_SECONDS: Final = 7 * 86_400.0
_MOST_STEPS: Final = 2_000_000  # so that a plan takes no time


@dataclass(frozen=True)
class Plan:
    work: Workload  # what is trained
    cluster: Cluster  # where
    ways: dict[int, list[Candidate]]  # for each number of workers all ways to train
    recommended: dict[int, Candidate | None]  # for each number of workers the name of one of these; None: none fits
    # for each number of workers, a job of the recommended way with slow workers and failures
    simulated: dict[int, Simulated]
    # predictions against measurements, on as many workers as this job has
    verified: list[Verified] = field(default_factory=list)
    in_parts: bool = False  # see `measured_workload`

    @property
    def fits(self) -> bool:
        """Whether some way fits into the memory, for some number of workers."""
        return any(way is not None for way in self.recommended.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": asdict(self.work),
            "measured_in_parts": self.in_parts,
            "cluster": asdict(self.cluster),
            "ways": {str(workers): [_row(way) for way in ways] for workers, ways in self.ways.items()},
            "recommended": {str(workers): way and way.name for workers, way in self.recommended.items()},
            "simulated": {
                str(workers): {**asdict(job), "goodput": job.goodput} for workers, job in self.simulated.items()
            },
            "verified": [{**asdict(way), "median": way.median, "error": way.error} for way in self.verified],
        }


def _row(way: Candidate) -> dict[str, Any]:
    return {
        "name": way.name,
        "layout": asdict(way.layout),
        **asdict(way.prediction),
        "records_per_second": way.records,
        "worker_seconds_per_record": way.cost,
        "fits": way.fits,
        "options": way.options,
    }


def predicted_plan(
    work: Workload,
    cluster: Cluster,
    counts: Sequence[int],
    ratios: Sequence[float],
    what: Disturbances,
    grows: bool,
    may_run: Callable[[Layout], bool] = lambda _: True,
) -> Plan:
    """Predict for each number of workers.

    Args:
        may_run: whether the other options of the training go with a layout.
        grows: the global batch grows with the number of workers: `work.batch` is that of one worker.
    """
    ways, best, jobs = {}, {}, {}
    for count in counts:
        local_work = replace(work, batch=work.batch * count) if grows else work
        if not (ways_here := candidates(local_work, cluster, count, ratios, may_run)):
            continue  # more workers than records
        ways[count], best[count] = ways_here, recommended(ways_here)
        if (chosen := best[count]) is not None:
            took = chosen.prediction
            steps = min(_MOST_STEPS, max(1, int(_SIMULATED_SECONDS / took.seconds)))
            jobs[count] = simulated(took.compute, took.seconds - took.compute, count, steps, what)
    if not ways:
        raise UsageError(
            f"The global batch holds {work.batch:g} records for {min(counts):,} workers or more.",
            "Some workers would have nothing to do in any step.",
            "give a larger --global-batch-size, or fewer --workers.",
        )
    return Plan(work, cluster, ways, best, jobs)
