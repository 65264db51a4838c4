"""grain: the batches of a plan, or the records of a catalog, as a `RandomAccessDataSource`.

    steps = grain.MapDataset.source(PlanSource(plan, reader, decode, rank=rank, size=size, epochs=3))
    for batch in steps.to_iter_dataset(): ...  # its state is the number of the global step

    grain.MapDataset.source(RecordSource(catalog)).shuffle(seed=0).map(...).batch(64)

The classes here are such sources by their methods alone, so this module imports nothing of grain. With `PlanSource` all
ranks go through the same steps, each with its own part of them, so that a state which any number of ranks has saved
means the same place for any other number. With the other two shuffling, sharding and batching are grain's: then a state
counts the batches of one rank, and fits the same number of ranks only.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.checks import at_least
from data_sharding.loading.decoding import Decode, name_of, read_and_decode
from data_sharding.loading.step_batches import LoadedBatch, load_slots
from data_sharding.plan.shard_plan import ShardPlan
from data_sharding.plan.step_slots import SlotPlanner
from data_sharding.reading.fork_safe_reader import ForkSafeReader
from data_sharding.reading.record_reader import RecordReader


class RecordSource:
    """The payloads, as bytes. grain's worker processes open the files for themselves; options as for `RecordReader`."""

    def __init__(self, catalog: Catalog, *, check_crc: bool = True, max_open_files: int = 256) -> None:
        self._reader = ForkSafeReader(RecordReader(catalog, check_crc, max_open_files))

    def __len__(self) -> int:
        return len(self._reader.catalog)

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        """One record. Errors as `RecordReader.load`; and whatever a decode function raises."""
        return self._getitems([record_key])[0]

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        """Records in the order of the keys; the method that grain looks for to read a batch at once."""
        return list(self._reader.get().read(_ids(record_keys)))

    def __repr__(self) -> str:
        # grain stores it in checkpoints, and refuses to resume where it has changed.
        return f"{type(self).__name__}({len(self)} records, fingerprint={self._reader.catalog.fingerprint})"


class DecodedSource(RecordSource):
    """Decoded records: dicts of the decode function's features, one row each. Otherwise as `RecordSource`.

    `decode` turns k records into arrays of k rows; grain's worker processes must be able to pickle it.
    """

    def __init__(self, catalog: Catalog, decode: Decode, *, check_crc: bool = True, max_open_files: int = 256) -> None:
        super().__init__(catalog, check_crc=check_crc, max_open_files=max_open_files)
        self._decode = decode

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        features = read_and_decode(self._reader.get(), self._decode, _ids(record_keys), None).features
        return [{name: array[row] for name, array in features.items()} for row in range(len(record_keys))]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, decode={name_of(self._decode)})"


class PlanSource:
    """One rank's parts of the steps of a plan's epochs: item i is step i % steps of epoch i // steps after the plan's.

    Where records behind a URL come in the order `block`, blocks are read whole and kept, in the process that made this:
    each of grain's worker processes would read all of them.

    Args:
        plan: the first epoch.
        reader: over the catalog that the plan was made for.
        decode: turns k records into arrays of k rows; grain's worker processes must be able to pickle it.
        rank, size: whose part of each step. Leave sharding to the plan: grain's options must not shard again.
        epochs: how many.
        augment: give `decode` random draws, which belong to (seed, epoch, record); None:
            where making an item takes random numbers.

    Raises:
        PlanError: an argument is out of range, or the plan was made for other data than the reader's.
    """

    def __init__(
        self,
        plan: ShardPlan,
        reader: RecordReader,
        decode: Decode,
        *,
        rank: int,
        size: int,
        epochs: int = 1,
        augment: bool | None = None,
    ) -> None:
        plan.require_catalog(reader.catalog)
        plan.shard(rank, size, 0)
        at_least(1, "epochs", epochs, "There is nothing to read.")
        self._plan, self._reader, self._decode = plan, ForkSafeReader(reader), decode
        self._rank, self._size, self._epochs, self._augment = rank, size, epochs, augment
        self._planner: SlotPlanner | None = None  # of the epoch that was read last

    def __len__(self) -> int:
        return self._plan.steps * self._epochs

    def __getitem__(self, record_key: SupportsIndex) -> LoadedBatch:
        """A step. Raises IndexError beyond the last one; else errors as `RecordReader.load` and the decode function."""
        number = record_key.__index__()
        if not 0 <= number < len(self):
            raise IndexError(f"step {number} of {len(self)}")
        epoch, step = divmod(number, self._plan.steps)
        planner = self._planner_of(self._plan.epoch + epoch)
        return load_slots(planner(step), functools.partial(read_and_decode, self._reader.get(), self._decode))

    def __repr__(self) -> str:
        # grain stores it in checkpoints, and refuses to resume where it has changed: not by the number of ranks.
        about = f"epochs={self._epochs}, fingerprint={self._plan.fingerprint}, decode={name_of(self._decode)}"
        return f"{type(self).__name__}({self._plan.steps} steps from epoch {self._plan.epoch}, {about})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planner": None}

    def _planner_of(self, epoch: int) -> SlotPlanner:
        planner = self._planner
        if planner is None or planner.plan.epoch != epoch:
            plan = dataclasses.replace(self._plan, epoch=epoch)
            by_block = self._reader.is_at_home and self._reader.get().gains_by_blocks
            planner = self._planner = SlotPlanner(plan, self._rank, self._size, self._augment, by_block)
        return planner


def _ids(record_keys: Sequence[SupportsIndex]) -> NDArray[np.int64]:
    return np.array([key.__index__() for key in record_keys], np.int64)
