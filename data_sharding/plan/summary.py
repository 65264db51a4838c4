"""What each rank reads in one epoch, and how the epoch is divided into steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.plan.balance import slice_begins
from data_sharding.plan.shard_plan import ShardPlan


@dataclass(frozen=True, eq=False)
class PlanSummary:
    """One epoch of a plan on W ranks.

    Attributes:
        last_step_records, masked: real records of the last step, and its slots that hold none.
        dropped: records that the epoch leaves out.
        records, bytes: int64[W], real records that each rank reads, and their payload bytes.
        slowest_bytes: the most bytes that one rank reads in a step, summed over the steps. Ranks wait for each other in
            every step, so this is what an epoch takes if bytes take the time; at best it is the mean of `bytes`.
    """

    steps: int
    last_step_records: int
    masked: int
    dropped: int
    records: NDArray[np.int64]
    bytes: NDArray[np.int64]
    slowest_bytes: int


def per_rank(plan: ShardPlan, catalog: Catalog, size: int) -> PlanSummary:
    """Count what W ranks read in one epoch, in blocks of some MiB for any N.

    Raises PlanError (the plan was made for other data, or G < W).
    """
    plan.require_catalog(catalog)
    plan.shard(0, size, 0)  # refuses a bad size before anything is made for each rank
    begins = slice_begins(plan.global_batch, size)
    records, sizes, slowest = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
    for _, (ids, weights) in plan.by_rank(size, range(plan.steps)):
        real = weights > 0
        records += np.add.reduceat(real, begins, axis=1, dtype=np.int64).sum(axis=0)
        loads = np.add.reduceat(np.where(real, catalog.lengths[ids], 0), begins, axis=1)
        sizes += loads.sum(axis=0)
        slowest += int(loads.max(axis=1).sum())
    last = int(plan.global_weight(plan.steps - 1))
    masked = plan.global_batch - last
    return PlanSummary(plan.steps, last, masked, len(plan.dropped()), records, sizes, slowest)
