"""The ways to train on a number of workers, each with what it would take, and which of them is recommended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from hvdtrain.algorithms.chain_cuts import LinkCost, balanced_cuts
from hvdtrain.algorithms.pipeline_schedule import micro_batches_in_flight, usual_micro_batches
from hvdtrain.plan.cost_model import Cluster, Layers, Layout, Prediction, Workload, predicted
from hvdtrain.units import in_bytes

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10_000)
NEEDS_LESS = "more workers, a smaller batch and --activation-checkpointing"  # What helps where nothing fits

_STAGES = (2, 3, 4, 6, 8, 12, 16)
_UNKNOWN_SECONDS = 0.01
"""Of each step, what shards and stages may take beyond a prediction: messages and micro batches of Python's and
Horovod's own. Simpler ways come first."""


@dataclass(frozen=True)
class Candidate:
    """A way to train."""

    name: str  # for people
    layout: Layout  # of the workers
    prediction: Prediction  # of a step
    records: float  # a second
    fits: bool  # whether it needs no more memory than a worker has
    options: tuple[str, ...] | None  # of `hvdtrain train`, or None where hvdtrain has no such way

    @property
    def cost(self) -> float:
        """Worker-seconds a record: what the same training costs, whatever a worker's price."""
        return (self.layout.workers + self.layout.servers) / self.records


def candidates(
    work: Workload,
    cluster: Cluster,
    workers: int,
    ratios: Sequence[float],
    may_run: Callable[[Layout], bool] = lambda _: True,
) -> list[Candidate]:
    """All ways for so many workers.

    Args:
        work: what is trained. Its batch is that of an update, over all workers.
        ratios: workers for each parameter server that is looked at.
        may_run: whether the other options of the training go with a layout.
    """
    ways = []
    for name, layout, options in _layouts(work, cluster, workers, ratios):
        options = options if options is None or may_run(layout) else None
        prediction = predicted(layout, work, cluster)
        fits = prediction.memory <= cluster.memory
        ways.append(Candidate(name, layout, prediction, work.batch / prediction.seconds, fits, options))
    return ways


def needs_least(ways: Sequence[Candidate]) -> str:
    """Half a sentence on the way that needs the least memory."""
    least = min(ways, key=lambda way: way.prediction.memory)
    return f"{least.name} needs the least, {in_bytes(least.prediction.memory)} a worker"


def recommended(ways: Sequence[Candidate]) -> Candidate | None:
    """The fastest that fits and that hvdtrain can run; of those within 2 % of it, or within `_UNKNOWN_SECONDS` a step,
    the simplest. None: none fits."""
    possible = [way for way in ways if way.fits and way.options is not None]
    if not possible:
        return None
    best = min(way.prediction.seconds for way in possible)
    return next(way for way in possible if way.prediction.seconds <= max(best / 0.98, best + _UNKNOWN_SECONDS))


def _layouts(
    work: Workload, cluster: Cluster, workers: int, ratios: Sequence[float]
) -> Iterator[tuple[str, Layout, tuple[str, ...] | None]]:
    if workers == 1:
        yield "one worker", Layout(1), ()
    elif workers * work.smallest <= work.batch:
        yield "ring", Layout(workers), ()
        yield "ZeRO-1", Layout(workers, shard="optimizer"), ("--shard optimizer",)
        yield "ZeRO-2", Layout(workers, shard="gradients"), ("--shard gradients",)
        if workers > cluster.workers_per_host > 1:
            yield "hierarchical ring", Layout(workers, exchange="hierarchical ring"), None
        for servers in dict.fromkeys(max(1, round(workers / ratio)) for ratio in ratios):
            name = f"parameter server, {workers}:{servers}"
            yield name, Layout(workers, exchange="parameter server", servers=servers), None
    for stages in (count for count in _STAGES if workers % count == 0):
        yield from _pipelines(work, cluster, workers // stages, stages)


def _pipelines(
    work: Workload, cluster: Cluster, replicas: int, stages: int
) -> Iterator[tuple[str, Layout, tuple[str, ...]]]:
    cuts = _cuts(tuple(work.layers), stages)
    records = int(work.batch / replicas) // work.smallest
    if cuts is None or records < 1:
        return
    grid = f"{replicas} × " if replicas > 1 else ""
    layout = _fitting(Layout(replicas, stages, 1, cuts=cuts), work, cluster)
    option = f"--parallel.stages {stages}"
    micro = usual_micro_batches(stages, records)
    yield f"pipeline {grid}{stages}", _fitting(replace(layout, micro_batches=micro), work, cluster), (option,)
    yield f"naive split {grid}{stages}", layout, (option, "--parallel.micro-batches 1")


@cache
def _cuts(layers: tuple[Layers, ...], stages: int) -> tuple[int, ...] | None:
    """Stages that are as equal in time as can be."""
    costs = [LinkCost(layer.forward + layer.backward, 0, layer.weights > 0) for layer in layers]
    return balanced_cuts(costs, stages)


def _fitting(layout: Layout, work: Workload, cluster: Cluster) -> Layout:
    """The layout, cut elsewhere if a stage needs more memory than a worker has and there are cuts where none does."""
    if predicted(layout, work, cluster).memory <= cluster.memory:
        return layout
    records, copies = work.batch / layout.replicas / layout.micro_batches, 2 + work.slots
    costs = [
        LinkCost(one.forward + one.backward, int(copies * one.weights), one.weights > 0, records * one.kept)
        for one in work.layers
    ]
    if sum(cost.nbytes + cost.kept for cost in costs) > layout.stages * cluster.memory:
        return layout
    in_flight = partial(micro_batches_in_flight, "1f1b", layout.stages, layout.micro_batches)
    cuts = balanced_cuts(costs, layout.stages, cluster.memory, in_flight)
    return layout if cuts is None else replace(layout, cuts=cuts)
