"""What the formulas take from the links between this job's workers."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import gather_json
from hvdtrain.doctor.allreduce_times import fit_ring, ring_times
from hvdtrain.doctor.allreduce_times import measure as measure_allreduces
from hvdtrain.plan.cost_model import LinkModel
from hvdtrain.run.prepare import RunSetup

_RING_SIZES: Final = (4, 2**14, 2**18, 2**20, 2**22, 2**24)
_MESSAGE_SIZES: Final = (2**10, 2**16, 2**20, 2**22)


@dataclass(frozen=True)
class Links:
    outer: LinkModel  # of Horovod's allreduce over all of them, which waits for the slowest link
    inner: LinkModel  # of allreduces within each host; as `outer` where these were not measured
    passing: LinkModel | None  # from a stage to the next one; None: not measured


def measured_links(setup: RunSetup, comm: Communicator, operation: Any, seconds: float) -> Links:
    """Fitted to times of allreduces, and of messages between ranks 0 and 1. Collective; of two workers or more.

    Args:
        operation: the framework's allreduce.
        seconds: about how long the allreduces over all workers may take.
    """
    outer = inner = _ring(setup, comm, operation, comm.topology.size, seconds)
    hosts = _ranks_by_host(comm)
    sizes = {len(ranks) for ranks in hosts}
    # Process sets are allowed in torch's jobs only; and rings of several sizes could not be told apart.
    if len(hosts) > 1 and len(sizes) == 1 and sizes != {1} and hasattr(operation, "within"):
        inner = _ring(setup, comm, operation.within(hosts, comm.topology.rank), len(hosts[0]), seconds)
    return Links(outer, inner, _passing(setup, comm))


def _ring(setup: RunSetup, comm: Communicator, operation: Any, workers: int, seconds: float) -> LinkModel:
    """The slowest rank's times count, on whatever host it is."""
    report = measure_allreduces(comm, operation, setup.task.framework, _RING_SIZES, seconds)
    ring = fit_ring(workers, ring_times(workers, report["transport"], report["sizes"]))
    return LinkModel(ring.latency, ring.bandwidth)


def _ranks_by_host(comm: Communicator) -> list[list[int]]:
    by_host: dict[str, list[int]] = {}
    for rank, name in enumerate(gather_json(comm, node_name(), "hvdtrain.plan.hosts")):
        by_host.setdefault(name, []).append(rank)
    return list(by_host.values())


def _passing(setup: RunSetup, comm: Communicator) -> LinkModel | None:
    if setup.task.framework != "torch" or comm.topology.size % 2:
        return None
    from hvdtrain.adapters.torch.pipeline.stage_boundaries import times_of_messages  # imports torch

    times = times_of_messages(comm.topology, setup.config.parallel, _MESSAGE_SIZES)
    seconds: list[list[float]] = gather_json(comm, times, "hvdtrain.plan.messages")
    slope, latency = np.polyfit(_MESSAGE_SIZES, seconds[0], 1, w=1 / np.array(seconds[0])).tolist()
    return LinkModel(max(latency, 1e-7), 1 / max(slope, 1e-13))
