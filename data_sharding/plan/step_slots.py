"""What one rank loads in each step of a plan."""

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.plan.shard_plan import ShardPlan, StepBatch
from data_sharding.sample_random import SampleRandom

# Positions of a rank that are planned together: enough to make the cost of a step's plan vanish beside its reading
# (170 µs a step one by one, a few together), few enough to delay no first batch.
_BLOCK_POSITIONS: Final = 4096


@dataclass(frozen=True, eq=False)
class StepSlots(Sequence[int]):
    """One rank's part of a step: a sequence of k record ids, and what is planned for them.

    Attributes:
        step: step of the epoch; -1 for records that are no step's.
        ids: int64[k].
        weights: float32[k], 0 for masked slots.
        global_weight: real records of the step over all ranks.
        random: draws for augmentation, if any.
        data_fingerprint: of the data that the ids belong to, if known.
    """

    step: int
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    global_weight: float
    random: SampleRandom | None = None
    data_fingerprint: str | None = None

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "StepSlots":
        """Any records, all of weight 1."""
        return cls(-1, np.asarray(ids, np.int64), np.ones(len(ids), np.float32), float(len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        """The ids, for data sets that know nothing of weights; warns where that counts a record twice."""
        if not self.weights.all():
            warnings.warn(
                f"{int((self.weights == 0).sum())} masked slots of step {self.step} are taken for records, which count "
                "twice. HINT: use data_sharding.adapters.torch.WithWeights(data), or a plan with tail='drop'.",
                stacklevel=2,
            )
        return iter(self.ids.tolist())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        chosen: int | list[int] = self.ids[index].tolist()
        return chosen


class SlotPlanner:
    """The `StepSlots` of one rank, for steps that are asked for more or less in order, from any thread.

    Equals `plan.shard(rank, size, step)`, but plans many steps at a time. `augment` adds random draws.
    """

    def __init__(self, plan: ShardPlan, rank: int, size: int, augment: bool) -> None:
        self._plan, self._augment = plan, augment
        self._block_steps = max(1, _BLOCK_POSITIONS * size // plan.global_batch)
        # Two blocks, for threads on either side of a boundary.
        self._block = functools.lru_cache(maxsize=2)(
            functools.partial(_plan_block, plan, rank, size, self._block_steps)
        )

    def __call__(self, step: int) -> StepSlots:
        """The slots of a step. Errors as `ShardPlan.shard`."""
        plan, (block, row) = self._plan, divmod(step, self._block_steps)
        batch = self._block(block)
        ids = batch.ids[row]
        random = SampleRandom(plan.seed, plan.epoch, ids) if self._augment else None
        return StepSlots(step, ids, batch.weights[row], plan.global_weight(step), random, plan.data_fingerprint)


def _plan_block(plan: ShardPlan, rank: int, size: int, block_steps: int, block: int) -> StepBatch:
    first = block * block_steps
    return plan.shards(rank, size, range(first, min(first + block_steps, plan.steps)))
