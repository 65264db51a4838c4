"""Which records a framework's sampler asks for at each step, and the position that it saves."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.plan.step_blocks import StepBlocks
from data_sharding.sample_random import SampleRandom

State = dict[str, Any]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StepSlots(Sequence[int]):
    """One rank's part of a step: a sequence of k record ids, and what is planned for them.

    Attributes:
        step: step of the epoch; -1 for records that are no step's.
        ids: int64[k].
        weights: float32[k], 0 for masked slots.
        global_weight: real records of the step over all ranks.
        random: draws for augmentation; None where nothing is to be augmented.
        data_fingerprint: of the data that the ids belong to; None where that is not known.
    """

    step: int
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    global_weight: float
    random: SampleRandom | None = None
    data_fingerprint: str | None = None

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> StepSlots:
        """Any records, all of weight 1."""
        return cls(-1, np.asarray(ids, np.int64), np.ones(len(ids), np.float32), float(len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        """What data sets do that know nothing of weights."""
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


@final
class SlotPlanner:
    """The `StepSlots` of one rank for any step of a plan; `augment` adds random draws."""

    def __init__(self, plan: ShardPlan, rank: int, size: int, augment: bool) -> None:
        self._plan, self._augment = plan, augment
        self._shard = StepBlocks(plan, rank, size)

    def __call__(self, step: int) -> StepSlots:
        plan = self._plan
        ids, weights = self._shard(step)
        random = SampleRandom(plan.seed, plan.epoch, ids) if self._augment else None
        return StepSlots(step, ids, weights, plan.global_weight(step), random, plan.data_fingerprint)


def state_at(plan: ShardPlan, step: int) -> State:
    """The position at which a step begins: epoch, samples_seen (step * G) and fingerprint of the plan.

    Raises:
        PlanError: there is no such step.
    """
    position = whole("start_step", step) * plan.global_batch
    plan.step_at(position)
    return {"epoch": plan.epoch, "samples_seen": position, "fingerprint": plan.fingerprint}


def plan_at(plan: ShardPlan, state: Mapping[str, Any]) -> tuple[ShardPlan, int]:
    """The plan of a saved position's epoch, and its step.

    Raises:
        PlanError: the state is of other data or of another plan, or is none.
    """
    try:
        epoch, position, fingerprint = (state[name] for name in ("epoch", "samples_seen", "fingerprint"))
    except KeyError as error:
        raise PlanError(
            f"The state to load has no {error}.",
            "A position needs epoch, samples_seen and fingerprint.",
            "load what state_dict() returned.",
        ) from error
    if fingerprint != plan.fingerprint:
        raise PlanError(
            "The state to load was saved for another plan.",
            "Its position means other records here.",
            "use the data, global batch, seed, shuffle and tail that it was saved with.",
        )
    loaded = dataclasses.replace(plan, epoch=epoch)
    return loaded, loaded.step_at(position)
