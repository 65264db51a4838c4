"""What one rank reads in each step, planned many steps at a time."""

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.plan.shard_plan import ShardPlan, StepBatch
from data_sharding.sample_random import SampleRandom

_BLOCK_POSITIONS: Final = 4096
"""Positions of a rank that are planned together: a step's plan takes 170 µs one by one, and a few among many."""


@dataclass(frozen=True, eq=False)
class StepSlots(Sequence[int]):
    """One rank's part of a step, as a `StepBatch`; a sequence of k record ids."""

    step: int  # of the epoch; -1 for records that no plan chose
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    global_weight: float  # real records of the step over all ranks
    random: SampleRandom | None = None  # draws for augmentation, if any
    data_fingerprint: str | None = None  # of the data that the ids belong to, if known
    longest: int | None = None  # length of the step's longest record over all ranks, where it is asked for
    ranges: NDArray[np.int64] | None = None  # as `ShardPlan.block_ranges`, where blocks are read whole

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "StepSlots":
        """Any records, all of weight 1."""
        return cls(-1, np.asarray(ids, np.int64), np.ones(len(ids), np.float32), float(len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        """The ids, for data sets that ignore weights; warns where that counts a record twice."""
        if not self.weights.all():
            warnings.warn(
                f"{int((self.weights == 0).sum())} masked slots of step {self.step} are taken for records, which count "
                "twice. HINT: use data_sharding.adapters.torch.WithWeights(data), or a plan with tail='drop'.",
                stacklevel=2,
            )
        return iter(self.ids.tolist())

    def __getitem__(self, index: Any) -> Any:
        return self.ids[index].tolist()


class SlotPlanner:
    """The `StepSlots` of one rank, for steps that are asked for more or less in order, from any thread.

    Equals `plan.shard(rank, size, step)`, but plans many steps at a time. `augment` adds random draws (None: where
    making an item takes random numbers), and `by_block` the ranges that are read together. `slices` is as for
    `ShardPlan.drawn`.
    """

    def __init__(
        self, plan: ShardPlan, rank: int, size: int, augment: bool | None, by_block: bool = False, slices: int = 1
    ) -> None:
        self.plan, self._augment = plan, plan.draws_numbers if augment is None else augment
        steps = self._block_steps = max(1, _BLOCK_POSITIONS * size // plan.global_batch)

        @functools.lru_cache(maxsize=2)  # for threads on either side of a boundary
        def block(number: int) -> tuple[StepBatch, list[int | None], Sequence[NDArray[np.int64] | None]]:
            some = range(number * steps, min((number + 1) * steps, plan.steps))
            drawn = plan.drawn(rank, size, some, slices)
            longest = plan.longest(some).tolist() if plan.pads else [None] * len(some)
            ranges = plan.block_ranges(rank, size, drawn.ids.reshape(-1), slices) if by_block else None
            return drawn, longest, [None] * len(some) if ranges is None else [*ranges.reshape(*drawn.ids.shape, 2)]

        self._block = block

    def __call__(self, step: int) -> StepSlots:
        """The slots of a step. Errors as `ShardPlan.shard`."""
        plan, (block, row) = self.plan, divmod(step, self._block_steps)
        batch, longest, ranges = self._block(block)
        drawn = batch.ids[row]
        random = SampleRandom(plan.seed, plan.epoch, drawn) if self._augment else None
        ids = plan.records(drawn)
        asked = (plan.data_fingerprint, longest[row], ranges[row])
        return StepSlots(step, ids, batch.weights[row], plan.global_weight(step), random, *asked)
