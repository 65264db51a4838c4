"""Whether these workers can train as V virtual ones."""

from dataclasses import replace
from typing import Final

import numpy as np

from hvdtrain.adapters.tree_exchange import adds_rank_after_rank
from hvdtrain.comm.communicator import Communicator
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology
from hvdtrain.topology.virtual_workers import VirtualWorkers

_NOT_ASSOCIATIVE: Final = (1.0, -1.0, 2.0**-30)
"""In float32 the sum of the three is 0 where the last one is not added last."""
_PROBED: Final = 2**18
"""Numbers: too many for Gloo to send them directly between ranks. Around its ring some are added in another order."""


def virtual_workers(count: int | None, place: Topology, global_batch: int, most: int) -> VirtualWorkers | None:
    """Those of the worker at `place`; None where `count` is None.

    Args: `most`: workers that the job may have.

    Raises `UsageError`: there are more workers than virtual ones, or some of these would have no record.
    """
    if count is None:
        return None
    if count < max(most, place.size):
        at_most = "1 worker" if count == 1 else f"at most {count} workers"
        workers = f"{place.size} workers" if most <= place.size else f"a job that may have {most} workers"
        raise UsageError(
            f"--virtual-workers {count} is given to {workers}.",
            "A virtual worker is computed by one worker, so that some would have nothing to do.",
            f"give --virtual-workers {max(most, place.size)} or more, or start {at_most}.",
        )
    if global_batch < count:
        raise UsageError(
            f"The global batch holds {global_batch} records for {count} virtual workers.",
            "Some of them would have nothing to do in any step.",
            f"give --global-batch-size {count} or more, or fewer --virtual-workers.",
        )
    return VirtualWorkers(count, place.rank, place.size, global_batch)


def require_same_threads(comm: Communicator, threads: int) -> None:
    """Raise `UsageError` on all ranks where they compute with different numbers of threads. Collective."""
    limits = np.array([threads, -threads])
    most, least = comm.allreduce(limits, "hvdtrain.prepare.threads", "max").tolist()
    if most != -least:
        raise UsageError(
            f"Some workers compute with {-least} threads, and others with {most}.",
            "With --virtual-workers all need the same number, since it changes the last bits, and hosts have different "
            "numbers of cores.",
            f"give it as --compute-threads {-least}.",
        ).on_all_ranks()


def with_order_of_sums(workers: VirtualWorkers, comm: Communicator) -> VirtualWorkers:
    """Note whether sums over Gloo have the order of ranks, if that makes a difference. Collective."""
    if workers.size != len(_NOT_ASSOCIATIVE) or not adds_rank_after_rank(workers):
        return workers
    own = np.full(_PROBED, _NOT_ASSOCIATIVE[workers.rank], np.float32)
    found = comm.allreduce(own, "hvdtrain.start.order_of_sums")
    return replace(workers, gloo_adds_in_order=bool((found == _NOT_ASSOCIATIVE[-1]).all()))
