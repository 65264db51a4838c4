"""Which records a DataLoader asks for at each step, the position that it saves, and the weights of a plan's slots."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from data_sharding.errors import PlanError
from data_sharding.objects.item_draws import made_alike
from data_sharding.plan.position import State, plan_at, state_at
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.plan.step_slots import SlotPlanner, StepSlots

T = TypeVar("T")


class ShardBatchSampler(Sampler[Sequence[int]]):
    """Batch sampler: one rank's parts of the steps of an epoch, as `StepSlots`.

    The state is one position that all ranks share, whatever their number: epoch, samples_seen, and the fingerprint of
    what it counts on. DataLoader asks for batches ahead of the training, so save the position after the last batch that
    was trained on: `sampler.state_dict(batch.step + 1)`.

    Args:
        plan, start_step: the first epoch, and its first step.
        rank, size: whose part of each step; PlanError if out of range.
        augment: give the decode function random draws, which belong to (seed, epoch, record); None:
            where making an item takes random numbers.
    """

    def __init__(
        self, plan: ShardPlan, rank: int, size: int, start_step: int = 0, *, augment: bool | None = None
    ) -> None:
        state_at(plan, start_step)
        plan.shard(rank, size, 0)
        self.plan, self.rank, self.size = plan, rank, size
        self.start_step, self.augment = start_step, augment
        self._before_load = (plan, start_step)

    def __iter__(self) -> "SamplerPass[StepSlots]":
        return SamplerPass(self, self.plan, self.start_step, lambda slots: slots)

    def __len__(self) -> int:
        return self.plan.steps - self.start_step

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`, from its first step; from the loaded one, if it is the loaded epoch."""
        if epoch != self.plan.epoch:
            self.plan, self.start_step = dataclasses.replace(self.plan, epoch=epoch), 0
        self._before_load = (self.plan, self.start_step)

    def state_dict(self, next_step: int | None = None) -> State:
        """The position at which `next_step` of the epoch begins; default: where the next pass begins."""
        return state_at(self.plan, self.start_step if next_step is None else next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a position, which any number of ranks may have saved.

        Raises PlanError (the state is of other data or of another plan, or is none).
        """
        loaded = plan_at(self.plan, state)
        self._before_load = (self.plan, self.start_step)
        self.plan, self.start_step = loaded

    def _take_back_load(self) -> None:
        # torchdata also loads a saved pass into the sampler, which would undo the set_epoch that a script calls before.
        self.plan, self.start_step = self._before_load


class SamplerPass(Iterator[T], Generic[T]):
    """One pass of a sampler. A stateful DataLoader saves and restores the pass, which changes no later pass.

    `load` makes something of a step's slots, `stride` is the number of DataLoader workers that share the steps, and
    `after_load` is called when a state was loaded.
    """

    def __init__(
        self,
        sampler: ShardBatchSampler,
        plan: ShardPlan,
        step: int,
        load: Callable[[StepSlots], T],
        stride: int = 1,
        after_load: Callable[[], None] = lambda: None,
    ) -> None:
        self._sampler, self._load, self._stride, self._after_load = sampler, load, stride, after_load
        self._begin(plan, step)

    def _begin(self, plan: ShardPlan, step: int) -> None:
        self._plan, self._next = plan, step
        self._slots = SlotPlanner(plan, self._sampler.rank, self._sampler.size, self._sampler.augment, by_block=True)

    def __next__(self) -> T:
        if self._next >= self._plan.steps:
            raise StopIteration
        batch = self._load(self._slots(self._next))
        self._next += self._stride
        return batch

    def state_dict(self) -> State:
        return {**state_at(self._plan, min(self._next, self._plan.steps)), "workers": self._stride}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("workers", 1) != self._stride:
            raise PlanError(
                f"The pass was saved by {state.get('workers')} DataLoader workers and loaded by {self._stride}.",
                "Each worker makes steps of its own, so others would repeat some and leave out others.",
                "use the same num_workers, or save the data set's state_dict(batch.step + 1) instead of the loader's.",
            )
        self._begin(*plan_at(self._plan, state))
        self._sampler._take_back_load()
        self._after_load()


class WithWeights(Dataset[tuple[Any, np.float32]]):
    """Any map-style data set, each item paired with its slot's weight: `DataLoader` gives (batch of items, float32[k]).

    A `ShardBatchSampler` fills the last step with masked slots, which repeat records: multiply the per-record losses by
    the weights, and divide their sum over all ranks by the sum of all weights. What other samplers choose has weight 1.
    Item i of `data` belongs to record id i of the plan. Where the sampler gives random draws, Python's, numpy's and
    torch's generators are seeded before each item, so that random transforms are those of (seed, epoch, record) with
    any number of ranks and DataLoader workers.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Any, np.float32]:
        return self._data[index], np.float32(1)

    def __getitems__(self, slots: Sequence[int]) -> list[tuple[Any, np.float32]]:
        """The items of a batch, of `StepSlots` or any indices."""
        chosen = slots if isinstance(slots, StepSlots) else StepSlots.of_ids(slots)
        items = self._items(chosen.ids) if chosen.random is None else made_alike(self._items, chosen.ids, chosen.random)
        return list(zip(items, chosen.weights, strict=True))

    def _items(self, ids: NDArray[np.int64]) -> Sequence[Any]:
        indices: list[int] = ids.tolist()
        at_once = getattr(self._data, "__getitems__", None)
        return at_once(indices) if at_once else [self._data[index] for index in indices]
