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

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Unpack

import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from data_sharding.adapters.torch_sampler import SamplerPass, ShardBatchSampler, WithWeights
from data_sharding.catalog import Catalog
from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decode, read_and_decode
from data_sharding.loading.step_batches import LoadedBatch, load_slots
from data_sharding.plan.position import State
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.plan.step_slots import StepSlots
from data_sharding.reading.fork_safe_reader import ForkSafeReader
from data_sharding.reading.record_reader import ReaderOptions, RecordReader
from data_sharding.reading.shared_blocks import blocks_pay

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


_TENSOR_KINDS: Final = "biufc"
"""Kinds of numpy dtypes that become tensors: truth values, integers, floats, complex numbers."""


class TorchBatch(NamedTuple):
    """One rank's part of one step, k records: `LoadedBatch` in tensors. DataLoader can pin its memory.

    `step` is -1 where a sampler of another kind chose the records. Arrays that no tensor can hold (strings, objects)
    stay numpy arrays in `features`.
    """

    step: int
    ids: torch.Tensor
    weights: torch.Tensor
    features: dict[str, Any]
    global_weight: float


class DecodedRows(Sequence[dict[str, Any]]):
    """k decoded records: `batch` has them together; as a sequence it gives one after the other.

    So `collate` takes the batch as it is, and torch's `default_collate` makes a dict of tensors from the records.
    """

    def __init__(self, batch: LoadedBatch) -> None:
        self.batch = batch
        taken = {"id", "weight"} & set(batch.features)
        if taken:
            fact = f"The decode function returned a feature named {taken.pop()!r}."
            conflict = "An item has the record's id and weight under these names."
            raise PlanError(fact, conflict, "give the feature another name.")

    def __len__(self) -> int:
        return len(self.batch.ids)

    def __getitem__(self, index: Any) -> Any:
        """The record at a place, or a list of those of a slice."""
        row = range(len(self))[index]
        if isinstance(row, range):
            return [self[number] for number in row]
        features = {name: array[row] for name, array in self.batch.features.items()}
        return {**features, "id": self.batch.ids[row], "weight": self.batch.weights[row]}


def to_torch(batch: LoadedBatch) -> TorchBatch:
    """The same batch in tensors, which share the arrays' memory where they can be written to."""
    features = {
        name: torch.as_tensor(_usable(array)) if array.dtype.kind in _TENSOR_KINDS else array
        for name, array in batch.features.items()
    }
    ids, weights = torch.as_tensor(_usable(batch.ids)), torch.as_tensor(batch.weights)
    return TorchBatch(batch.step, ids, weights, features, batch.global_weight)


def collate(rows: DecodedRows) -> TorchBatch:
    """`collate_fn` for a DataLoader over `ShardDataset`: the batch as it was decoded; PlanError for other items."""
    if not isinstance(rows, DecodedRows):
        fact = f"collate was given {type(rows).__name__}."
        conflict = "It takes whole batches, as ShardDataset gives them."
        raise PlanError(fact, conflict, "use it with ShardDataset and a batch sampler, or leave out collate_fn.")
    return to_torch(rows.batch)


def _usable(array: NDArray[Any]) -> NDArray[Any]:
    """An array that can be written to, in this machine's byte order, with no negative stride: a tensor needs that."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        return native.copy()
    return native


class _Pass(NamedTuple):
    """The last step that was read, and whether blocks are read whole since the first one."""

    step: int
    keeps_blocks: bool


class ShardDataset(Dataset[dict[str, Any]]):
    """Map-style data set of decoded records; index i is record id i.

    An item is a dict of the decode function's features for one record, its "id", and its "weight" of 1. A batch that a
    `ShardBatchSampler` asks for is read and decoded at once, and has the plan's weights. Workers that are forked or
    spawned open the files for themselves; spawned ones must be able to import `decode`, which turns k records into
    arrays of k rows. Options are as for `RecordReader`; a damaged record that is masked has weight 0. Where records
    behind a URL come in the order `block`, blocks are read whole and kept, by each worker if there are several; large
    records, of which each would take the network that often, are then read one by one.
    """

    def __init__(self, catalog: Catalog, decode: Decode, **options: Unpack[ReaderOptions]) -> None:
        self._reader = ForkSafeReader(RecordReader(catalog, **options))
        self._decode = decode
        self._pass = _Pass(-1, False)

    def __len__(self) -> int:
        return len(self._reader.catalog)

    def __getitem__(self, record_id: int) -> dict[str, Any]:
        """One record. Errors as `RecordReader.load`; and whatever the decode function raises."""
        item: dict[str, Any] = self.__getitems__([record_id])[0]
        return item

    def __getitems__(self, slots: Sequence[int]) -> DecodedRows:
        """A batch, of `StepSlots` or any record ids. Raises as `__getitem__`, and PlanError for slots of other data."""
        chosen = slots if isinstance(slots, StepSlots) else StepSlots.of_ids(slots)
        if chosen.data_fingerprint not in (None, self._reader.catalog.fingerprint):
            fact = "The sampler's plan is for other data than the data set's."
            conflict = "Record ids of one mean nothing in the other."
            raise PlanError(fact, conflict, "make the plan with ShardPlan.for_catalog and the data set's catalog.")
        return DecodedRows(self._load(chosen))

    def _load(self, slots: StepSlots) -> LoadedBatch:
        reader = self._reader.get()
        if not self._keeps_blocks(reader, slots):
            slots = dataclasses.replace(slots, ranges=None)
        return load_slots(slots, functools.partial(read_and_decode, reader, self._decode))

    def _keeps_blocks(self, reader: RecordReader, slots: StepSlots) -> bool:
        """Whether blocks are read whole, by each of the workers. Decided at the first step of a pass."""
        if slots.ranges is None:
            return True  # there are none
        keeps = self._pass.keeps_blocks
        if slots.step <= self._pass.step or self._pass.step < 0:
            worker = get_worker_info()
            count = 1 if worker is None else worker.num_workers
            keeps = reader.gains_by_blocks and blocks_pay(reader.catalog, slots.ids, slots.ranges, count)
        self._pass = _Pass(slots.step, keeps)
        return keeps


class ShardIterable(IterableDataset[TorchBatch]):
    """Iterable data set of one rank's batches, for `DataLoader(..., batch_size=None)`.

    DataLoader's workers share the steps among themselves and their order is restored. Without workers each batch is
    read when it is asked for; then `ShardLoader`, which reads ahead, is the better choice. torchdata's
    StatefulDataLoader resumes behind the last batch that was taken, with the same number of workers.

    Arguments are as for `ShardBatchSampler` and `ShardDataset`. Raises PlanError (one is out of range, or the plan is
    for other data).
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
        augment: bool | None = None,
        **options: Unpack[ReaderOptions],
    ) -> None:
        plan.require_catalog(catalog)
        self._sampler = ShardBatchSampler(plan, rank, size, start_step, augment=augment)
        self._data = ShardDataset(catalog, decode, **options)
        # In shared memory: workers that DataLoader keeps over epochs have a copy of everything else.
        self._position = torch.tensor([plan.epoch, start_step]).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> SamplerPass[TorchBatch]:
        """The batches of this DataLoader worker, or all; errors as `RecordReader.load`, or of the decode function."""
        epoch, start_step = self._position.tolist()
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        plan = dataclasses.replace(self._sampler.plan, epoch=epoch)
        return SamplerPass(self._sampler, plan, start_step + first, self._load, stride, self._publish)

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """As `ShardBatchSampler.set_epoch`; workers that are kept from one epoch to the next see it, too."""
        self._sampler.set_epoch(epoch)
        self._publish()

    def state_dict(self, next_step: int | None = None) -> State:
        return self._sampler.state_dict(next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._publish()

    def _load(self, slots: StepSlots) -> TorchBatch:
        return to_torch(self._data._load(slots))

    def _publish(self) -> None:
        self._position.copy_(torch.tensor([self._sampler.plan.epoch, self._sampler.start_step]))
