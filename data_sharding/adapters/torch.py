"""PyTorch: batches of a plan through `torch.utils.data.DataLoader`, or from our own loader as tensors.

Three ways, which give rank r of W the same `TorchBatch`es in the same order:

    map(to_torch, ShardLoader(plan, reader, decode, rank=r, size=W))
        threads of this process read ahead, or with `processes=N` helpers that need no DataLoader

    DataLoader(ShardDataset(catalog, decode), batch_sampler=ShardBatchSampler(plan, r, W), collate_fn=collate)
        map-style: the sampler says which records, DataLoader's workers read them

    DataLoader(ShardIterable(plan, catalog, decode, r, W), batch_size=None)
        iterable: worker i of n makes steps i, i + n, i + 2n ..., and DataLoader takes turns

A map-style data set of one's own goes with the sampler as `WithWeights(data)`, for the weights of the slots.

`weights` are 0 for masked slots: multiply the per-record losses by them, and divide their sum over all ranks by
`global_weight`, the same number on every rank. An error in a DataLoader worker arrives as DataLoader reports it: a
RuntimeError whose text has the name and message of the original.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from data_sharding.adapters.process_reader import ProcessReader
from data_sharding.adapters.steps import SlotPlanner, State, StepSlots, plan_at, state_at
from data_sharding.adapters.torch_batch import DecodedRows, TorchBatch, collate, to_torch
from data_sharding.adapters.torch_weights import WithWeights
from data_sharding.catalog import Catalog, OnCorrupt
from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decode, read_and_decode
from data_sharding.loading.shard_loader import LoadedBatch, check_same_data
from data_sharding.plan.shard_plan import ShardPlan

__all__ = [
    "DecodedRows",
    "ShardBatchSampler",
    "ShardDataset",
    "ShardIterable",
    "TorchBatch",
    "WithWeights",
    "collate",
    "to_torch",
]


@final
class ShardDataset(Dataset[dict[str, Any]]):
    """Map-style data set of decoded records; index i is record id i.

    An item is a dict of the decode function's features for one record, its "id", and its "weight" of 1. A batch that a
    `ShardBatchSampler` asks for is read and decoded at once, and has the plan's weights. Workers that are forked or
    spawned open the files for themselves.

    Args:
        catalog: the records.
        decode: turns k records into arrays of k rows; spawned workers must be able to import it.
        check_crc, max_open_files, on_corrupt: as for `RecordReader`. A damaged record that is masked has weight 0.
    """

    def __init__(
        self,
        catalog: Catalog,
        decode: Decode,
        *,
        check_crc: bool = True,
        max_open_files: int = 256,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        self._reader = ProcessReader(catalog, check_crc, max_open_files, on_corrupt)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._reader.catalog)

    def __getitem__(self, record_id: int) -> dict[str, Any]:
        """One record.

        Raises:
            NoSuchRecordError: there is no such record.
            ShardingError: as `RecordReader.load`; and whatever the decode function raises.
        """
        return self.__getitems__([record_id])[0]

    def __getitems__(self, slots: Sequence[int]) -> DecodedRows:
        """A batch, of `StepSlots` or any record ids. Raises as `__getitem__`, and PlanError for slots of other data."""
        chosen = slots if isinstance(slots, StepSlots) else StepSlots.of_ids(slots)
        if chosen.data_fingerprint not in (None, self._reader.catalog.fingerprint):
            raise PlanError(
                "The sampler's plan is for other data than the data set's.",
                "Record ids of one mean nothing in the other.",
                "make the plan with ShardPlan.for_catalog and the data set's catalog.",
            )
        return DecodedRows(_load(self._reader, self._decode, chosen))


class _Steps(Iterator[StepSlots]):
    """One pass of a sampler. A stateful DataLoader saves and restores the pass, which changes no later pass."""

    def __init__(self, sampler: ShardBatchSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.plan, sampler.start_step)

    def _begin(self, plan: ShardPlan, step: int) -> None:
        sampler = self._sampler
        self._plan, self._next = plan, step
        self._slots = SlotPlanner(plan, sampler.rank, sampler.size, sampler.augment)

    def __next__(self) -> StepSlots:
        if self._next >= self._plan.steps:
            raise StopIteration
        slots = self._slots(self._next)
        self._next += 1
        return slots

    def state_dict(self) -> State:
        return state_at(self._plan, self._next)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begin(*plan_at(self._plan, state))
        self._sampler._take_back_load()


@final
class ShardBatchSampler(Sampler[Sequence[int]]):
    """Batch sampler: one rank's parts of the steps of an epoch, as `StepSlots`.

    The state is one position that all ranks share, whatever their number: epoch, samples_seen, and the fingerprint of
    what it counts on. DataLoader asks for batches ahead of the training, so save the position after the last batch that
    was trained on: `sampler.state_dict(batch.step + 1)`.

    Args:
        plan: the first epoch.
        rank, size: whose part of each step.
        start_step: first step of the first epoch.
        augment: give the decode function random draws, which belong to (seed, epoch, record).

    Raises:
        PlanError: an argument is out of range.
    """

    def __init__(self, plan: ShardPlan, rank: int, size: int, start_step: int = 0, *, augment: bool = False) -> None:
        state_at(plan, start_step)
        plan.shard(rank, size, 0)
        self.plan, self.rank, self.size = plan, rank, size
        self.start_step, self.augment = start_step, augment
        self._before_load = (plan, start_step)

    def __iter__(self) -> _Steps:
        return _Steps(self)

    def __len__(self) -> int:
        return self.plan.steps - self.start_step

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`, from its first step; from the loaded one, if it is the loaded epoch.

        Raises:
            PlanError: the epoch is negative.
        """
        if epoch != self.plan.epoch:
            self.plan, self.start_step = dataclasses.replace(self.plan, epoch=epoch), 0
        self._before_load = (self.plan, self.start_step)

    def state_dict(self, next_step: int | None = None) -> State:
        """The position at which `next_step` of the epoch begins; default: where the next pass begins.

        Raises:
            PlanError: there is no such step.
        """
        return state_at(self.plan, self.start_step if next_step is None else next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a position, which any number of ranks may have saved.

        Raises:
            PlanError: the state is of other data or of another plan, or is none.
        """
        loaded = plan_at(self.plan, state)
        self._before_load = (self.plan, self.start_step)
        self.plan, self.start_step = loaded

    def _take_back_load(self) -> None:
        # torchdata loads a saved pass into the sampler, too, which would undo the set_epoch that a script calls before.
        self.plan, self.start_step = self._before_load


@final
class ShardIterable(IterableDataset[TorchBatch]):
    """Iterable data set of one rank's batches, for `DataLoader(..., batch_size=None)`.

    DataLoader's workers share the steps among themselves and their order is restored. Without workers each batch is
    read when it is asked for; then `ShardLoader`, which reads ahead, is the better choice. torchdata's
    StatefulDataLoader resumes behind the last batch that was taken, with the same number of workers.

    Args:
        plan, rank, size, start_step, augment: as for `ShardBatchSampler`.
        catalog: the records that the plan was made for.
        decode, check_crc, max_open_files, on_corrupt: as for `ShardDataset`.

    Raises:
        PlanError: an argument is out of range, or the plan is for other data.
    """

    def __init__(
        self,
        plan: ShardPlan,
        catalog: Catalog,
        decode: Decode,
        rank: int,
        size: int,
        start_step: int = 0,
        *,
        augment: bool = False,
        check_crc: bool = True,
        max_open_files: int = 256,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        check_same_data(plan, catalog)
        self._sampler = ShardBatchSampler(plan, rank, size, start_step, augment=augment)
        self._reader = ProcessReader(catalog, check_crc, max_open_files, on_corrupt)
        self._decode = decode
        # In shared memory: workers that DataLoader keeps over epochs have a copy of everything else.
        self._position = torch.tensor([plan.epoch, start_step]).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> _WorkerBatches:
        """The batches of this DataLoader worker; all of them outside of a worker.

        Raises:
            ShardingError: as `RecordReader.load`; and whatever the decode function raises.
        """
        return _WorkerBatches(self)

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """As `ShardBatchSampler.set_epoch`; workers that are kept from one epoch to the next see it, too."""
        self._sampler.set_epoch(epoch)
        self._publish()

    def state_dict(self, next_step: int | None = None) -> State:
        """As `ShardBatchSampler.state_dict`."""
        return self._sampler.state_dict(next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `ShardBatchSampler.load_state_dict`."""
        self._sampler.load_state_dict(state)
        self._publish()

    def _publish(self) -> None:
        self._position.copy_(torch.tensor([self._sampler.plan.epoch, self._sampler.start_step]))


class _WorkerBatches(Iterator[TorchBatch]):
    """One pass of a `ShardIterable` in one DataLoader worker, which torchdata's StatefulDataLoader saves and restores.

    Its state is a position, and the worker's number of steps between two batches.
    """

    def __init__(self, data: ShardIterable) -> None:
        self._data = data
        epoch, start_step = data._position.tolist()
        worker = get_worker_info()
        first, self._stride = (worker.id, worker.num_workers) if worker else (0, 1)
        self._begin(dataclasses.replace(data._sampler.plan, epoch=epoch), start_step + first)

    def _begin(self, plan: ShardPlan, step: int) -> None:
        sampler = self._data._sampler
        self._plan, self._next = plan, step
        self._slots = SlotPlanner(plan, sampler.rank, sampler.size, sampler.augment)

    def __next__(self) -> TorchBatch:
        if self._next >= self._plan.steps:
            raise StopIteration
        batch = to_torch(_load(self._data._reader, self._data._decode, self._slots(self._next)))
        self._next += self._stride
        return batch

    def state_dict(self) -> State:
        return {**state_at(self._plan, min(self._next, self._plan.steps)), "workers": self._stride}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("workers") != self._stride:
            raise PlanError(
                f"The pass was saved by {state.get('workers')} DataLoader workers and loaded by {self._stride}.",
                "Each worker makes steps of its own, so others would repeat some and leave out others.",
                "use the same num_workers, or save the data set's state_dict(batch.step + 1) instead of the loader's.",
            )
        self._begin(*plan_at(self._plan, state))
        self._data._sampler._take_back_load()
        self._data._publish()


def _load(reader: ProcessReader, decode: Decode, slots: StepSlots) -> LoadedBatch:
    features, intact = read_and_decode(reader.get(), decode, slots.ids, slots.random)
    damaged = slots.ids[~intact & (slots.weights > 0)]
    return LoadedBatch(slots.step, slots.ids, slots.weights * intact, features, slots.global_weight, damaged)
