"""Make a plan: measure, predict, recommend, simulate, and verify if that is asked for; or train as it recommends."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from hvdtrain.adapters.chosen_framework import device_kind, device_memory
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.comm.open import form_stages, measured_allreduce
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.plan.candidates import NEEDS_LESS, needs_least
from hvdtrain.plan.check_predictions import config_of, measured_best, verified
from hvdtrain.plan.cluster_simulation import Disturbances
from hvdtrain.plan.cost_model import Cluster, Layout, LinkModel, ring_seconds
from hvdtrain.plan.measured_links import Links, measured_links
from hvdtrain.plan.measured_workload import measured_workload, undivided
from hvdtrain.plan.predicted_plan import Plan, predicted_plan
from hvdtrain.run.host_memory import host_memory_left
from hvdtrain.run.prepare import RunSetup, prepare
from hvdtrain.task.task import Task
from hvdtrain.units import in_bytes

_ASSUMED: Final = LinkModel(5e-5, 1.25e9)
"""10 Gbit/s, where there is one worker and nobody says how it would be connected."""

_CHOICE_SECONDS: Final = 2.0  # About how long `--parallel auto` measures each thing


def timed_parallel(framework: str, workers: int) -> ParallelOptions:
    """For which process sets are allowed before a plan, and of an even number of workers formed: two stages, so that
    the way between them can be timed."""
    return ParallelOptions(2 if framework == "torch" and workers > 1 else 1)


@dataclass(frozen=True)
class PlanRequest:
    """What is asked for."""

    counts: Sequence[int]  # numbers of workers
    seconds: float  # about how long each measurement takes
    verify: bool  # run the ways on this job's workers
    link: LinkModel | None  # between all workers; None: as measured
    memory: float | None  # bytes of a worker; None: what one has here
    workers_per_host: int | None  # None: as here
    ratios: Sequence[float]  # workers for each parameter server
    disturbances: Disturbances  # of simulated jobs


def make_plan(setup: RunSetup, config: TrainConfig, kind: type[Task], comm: Communicator, request: PlanRequest) -> Plan:
    """See the module. Collective.

    Args:
        setup: of `undivided` training, in a job whose process sets were formed for `timed_parallel`.
        config: as the user gave it.
    """
    whole = undivided(config)
    size = comm.topology.size

    def may_run(layout: Layout) -> bool:
        try:
            config_of(layout, config)
        except UsageError:
            return False
        return True

    operation = measured_allreduce(kind.framework) if comm.topology.is_distributed else None
    beside = getattr(operation, "beside", None) if device_kind(kind.framework) == "CPU" else None
    memory = _memory(comm, kind.framework)
    work, exchanging, in_parts = measured_workload(setup, comm, request.seconds, beside, memory)
    cluster = _cluster(setup, comm, operation, request, memory)
    if beside is not None and request.link is None:
        ring = ring_seconds(work.whole.weights, size, cluster.outer)  # of this job, wherever its workers are
        cluster = replace(cluster, slowdown=max(1.0, exchanging / ring))
    if config.batch_size is not None:  # a worker's, so that the global batch grows with the number of workers
        work = replace(work, batch=work.batch / size)
    counts = sorted({*request.counts, *([size] if request.verify else [])})
    grows = config.batch_size is not None
    plan = predicted_plan(work, cluster, counts, request.ratios, request.disturbances, grows, may_run)
    plan = replace(plan, in_parts=in_parts)
    if request.verify:
        ways = plan.ways.get(size, [])
        measured_ways = verified(ways, whole, kind, comm, request.seconds, cluster.memory)
        best = measured_best(ways, measured_ways) or plan.recommended.get(size)
        plan = replace(plan, verified=measured_ways, recommended={**plan.recommended, size: best})
    return plan


def chosen(config: TrainConfig, kind: type[Task], comm: Communicator) -> TrainConfig:
    """`--parallel auto`: the config of the way that a plan recommends for these workers.

    Collective, on a communicator that was opened for `timed_parallel`.

    Raises UsageError: on all ranks: no way fits into the memory of a worker.
    """
    workers = comm.topology.size
    setup = prepare(undivided(config), kind, comm)
    request = PlanRequest((workers,), _CHOICE_SECONDS, False, None, None, None, (), Disturbances())
    plan = make_plan(setup, config, kind, comm, request)
    best = plan.recommended[workers]
    answer = [needs_least(plan.ways[workers]), None] if best is None else [best.name, asdict(best.layout)]
    name, fields = broadcast_json(comm, answer, "hvdtrain.plan.chosen")
    if fields is None:
        raise UsageError(
            f"No way to train fits into {in_bytes(plan.cluster.memory)}, which each of {workers} workers has left.",
            f"{name}.",
            f"{NEEDS_LESS} need less; `hvdtrain plan --workers …` says how much.",
        ).on_all_ranks()
    layout = Layout(**{**fields, "cuts": tuple(fields["cuts"])})
    if comm.topology.is_root:
        print(f"hvdtrain: --parallel auto: {name} ({workers} workers)", flush=True)
    chosen_config = config_of(layout, config)
    form_stages(kind.framework, comm, chosen_config.parallel)
    return chosen_config


def _cluster(setup: RunSetup, comm: Communicator, operation: Any, request: PlanRequest, memory: float) -> Cluster:
    topology, framework = comm.topology, setup.task.framework
    on_gpu = device_kind(framework) == "GPU"
    link = request.link or _ASSUMED
    links = Links(link, link, None)
    if request.link is None and topology.is_distributed:
        links = measured_links(setup, comm, operation, request.seconds / 2)
    per_host = request.workers_per_host or int(broadcast_json(comm, topology.local_size, "hvdtrain.plan.per_host"))
    hides = 1.0 if on_gpu else 0.0
    return Cluster(links.outer, links.inner, links.passing, per_host, request.memory or memory, hides)


def _memory(comm: Communicator, framework: str) -> float:
    """Bytes that each worker has here for its part of the model: the least of all workers. Collective."""
    here = device_memory(framework) or host_memory_left(comm.topology)
    return float(comm.allreduce(np.array([here]), "hvdtrain.plan.memory", "min")[0])
