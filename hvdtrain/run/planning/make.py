"""Make a plan: measure, predict, recommend, simulate, and verify if that is asked for."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hvdtrain.adapters.open import device_kind, device_memory
from hvdtrain.algorithms.cluster_simulation import Disturbances
from hvdtrain.algorithms.cost_model import Cluster, Layout, LinkModel, ring_seconds
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.comm.open import measured_allreduce
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.doctor.machine import memory_limit
from hvdtrain.errors import UsageError
from hvdtrain.run.planning.measured import Links, measured_links, measured_workload, undivided
from hvdtrain.run.planning.plan import Plan, predicted_plan
from hvdtrain.run.planning.verify import config_of, verified
from hvdtrain.run.prepare import RunSetup
from hvdtrain.task.interface import Task

_ASSUMED: Final = LinkModel(5e-5, 1.25e9)
"""10 Gbit/s, where there is one worker and nobody says how it would be connected."""


def timed_parallel(framework: str, workers: int) -> ParallelOptions:
    """For which process sets are formed before a plan: two stages, so that the way between them can be timed."""
    return ParallelOptions(2 if framework == "torch" and workers % 2 == 0 else 1)


@dataclass(frozen=True)
class PlanRequest:
    """What is asked for.

    Attributes:
        counts: numbers of workers.
        seconds: about how long each measurement takes.
        verify: run the ways on this job's workers.
        link: between all workers; None: as measured.
        memory: bytes of a worker; None: what one has here.
        workers_per_host: None: as here.
        ratios: workers for each parameter server.
        disturbances: of simulated jobs.
    """

    counts: Sequence[int]
    seconds: float
    verify: bool
    link: LinkModel | None
    memory: float | None
    workers_per_host: int | None
    ratios: Sequence[float]
    disturbances: Disturbances


def make_plan(setup: RunSetup, config: TrainConfig, kind: type[Task], comm: Communicator, request: PlanRequest) -> Plan:
    """See the module. Collective.

    Args:
        setup: of `undivided` training, in a job whose process sets were formed for `timed_parallel`.
        config: as the user gave it.
        kind: the task.
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
    measured = measured_workload(setup, comm, request.seconds, beside)
    work = measured.work
    cluster = _cluster(setup, comm, operation, request)
    if beside is not None and request.link is None:
        ring = ring_seconds(work.whole.weights, size, cluster.inner)
        cluster = replace(cluster, slowdown=max(1.0, measured.exchanging / ring))
    if config.batch_size is not None:  # a worker's, so that the global batch grows with the number of workers
        work = replace(work, batch=work.batch / size)
    counts = sorted({*request.counts, *([size] if request.verify else [])})
    grows = config.batch_size is not None
    plan = predicted_plan(work, cluster, counts, request.ratios, request.disturbances, grows, may_run)
    if request.verify:
        plan = replace(
            plan, verified=verified(plan.ways.get(size, []), whole, kind, comm, request.seconds, cluster.memory)
        )
    return plan


def _cluster(setup: RunSetup, comm: Communicator, operation: Any, request: PlanRequest) -> Cluster:
    topology, framework = comm.topology, setup.task.framework
    on_gpu = device_kind(framework) == "GPU"
    links = Links(request.link or _ASSUMED, None)
    if request.link is None and topology.is_distributed:
        links = measured_links(setup, comm, operation, request.seconds / 2)
    own = request.memory or device_memory(framework) or _host_memory() / topology.local_size
    memory = float(comm.allreduce(np.array([own]), "hvdtrain.plan.memory", "min")[0])
    per_host = request.workers_per_host or int(broadcast_json(comm, topology.local_size, "hvdtrain.plan.per_host"))
    return Cluster(links.ring, links.ring, links.passing, per_host, memory, 1.0 if on_gpu else 0.0)


def _host_memory() -> float:
    """Bytes that all workers of this host may use together."""
    return float(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), memory_limit() or math.inf))
