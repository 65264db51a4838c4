"""Which records form each step of an epoch, and which of them each rank reads."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_sharding import checks
from data_sharding.draws.draw_rule import DrawRule
from data_sharding.errors import PlanError
from data_sharding.permutation import Permutation
from data_sharding.plan.balance import MASKED, deal
from data_sharding.plan.block_shape import FEW_STREAMS, BlockShape, shape_for
from data_sharding.plan.block_shuffle import BlockShuffle
from data_sharding.plan.group_shuffle import GroupShuffle
from data_sharding.plan.length_buckets import LengthBuckets
from data_sharding.reading.record_table import RecordTable

Shuffle = Literal["global", "block", "length", "none"]
Tail = Literal["mask", "drop"]
Balance = Literal["records", "bytes"]

_BLOCK_SLOTS: Final = 1 << 15
"""Slots that are worked on together where whole global batches are needed: 256 KiB an array, which fits a cache."""


class StepBatch(NamedTuple):
    """Records of one step, or of one rank's slice of it.

    Attributes:
        ids: int64[k] record ids; a masked slot holds the id of some real record, so that it can be read and decoded.
        weights: float32[k], 1 for a real record, 0 for a masked slot.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class ShardPlan:
    """The batches of one epoch: a pure function of its fields, the same for every number of ranks.

    Attributes:
        num_records: N, records of an epoch: those of the data set, or what `draws` makes of them.
        global_batch: G, slots of a step over all ranks.
        seed, epoch: select the order; any integer seed, epoch >= 0.
        shuffle: "global" draws every position from the whole data set; "block" shuffles blocks of neighbouring records
            and reads each to its end, for data behind a URL (see `block_shuffle`) or in groups (see `group_shuffle`);
            "length" draws the records of a step from those of similar length (see `length_buckets`); "none" keeps the
            catalog's order.
        tail: when G does not divide N, "mask" fills the last step with slots of weight 0, "drop" leaves out the last
            N mod G records of the order.
        data_fingerprint: the catalog's.
        block_records: neighbouring records of a block, `streams`: distant places from which each step is mixed, but
            no more than its slots; for `shuffle="block"` only. `for_catalog` chooses them by the size of records.
        balance: "records" gives each rank a contiguous slice of each step; "bytes" deals the step's records to the
            ranks, each as many as its slice has, so that their bytes are even (see `balance`). It chooses the rank that
            reads a record, not the step.
        lengths: bytes of each record of the data set, int64, needed for `balance="bytes"`. Not part of the plan's
            equality, and neither are
        by_length: int64[N], ids in the order of the records' lengths, needed for `shuffle="length"`;
        draws: which records an epoch draws, and how often; None: each once. The catalog's fingerprint knows it;
        group_begins: int64[m], the first record of each group that is decoded together: these are the blocks then;
        pads: whether who makes a batch is told the length of the step's longest record over all ranks;
        draws_numbers: whether making an item takes random numbers, which then belong to (seed, epoch, record).

    Raises:
        PlanError: a number is not whole, no records, G < 1, epoch < 0, an unknown option, `tail="drop"` with G > N, or
            `balance="bytes"` without fitting lengths or with `shuffle="block"`.
    """

    num_records: int
    global_batch: int
    seed: int
    epoch: int
    shuffle: Shuffle = "global"
    tail: Tail = "mask"
    data_fingerprint: str = ""
    block_records: int = 64
    balance: Balance = "records"
    lengths: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    by_length: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    draws: DrawRule | None = field(default=None, compare=False, repr=False)
    streams: int = FEW_STREAMS
    group_begins: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    pads: bool = field(default=False, compare=False, repr=False)
    draws_numbers: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("num_records", "global_batch", "seed", "epoch", "block_records", "streams"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name)))
        for name, literal in (("shuffle", Shuffle), ("tail", Tail), ("balance", Balance)):
            checks.one_of(name, getattr(self, name), literal)
        checks.check_numbers(self.num_records, self.global_batch, self.epoch, self.block_records, self.tail)
        checks.at_least(1, "streams", self.streams, "Blocks are read in one stream at least.")
        if self.balance == "bytes":
            checks.check_balanced_bytes(self.lengths, None if self.draws else self.num_records, self.shuffle)
        if self._together > 1:
            checks.check_together(self._together, self.global_batch, self.shuffle)
        if self.shuffle == "length":
            checks.check_lengths_known(self.by_length, self.num_records, self.draws is not None)

    @classmethod
    def for_catalog(
        cls,
        catalog: RecordTable,
        *,
        global_batch: int,
        seed: int,
        epoch: int,
        shuffle: Shuffle = "global",
        tail: Tail = "mask",
        block_records: int = 64,
        balance: Balance = "records",
    ) -> Self:
        """Plan one epoch over a catalog; see the class for the arguments and errors."""
        records, data = catalog.epoch_length, catalog.fingerprint
        shape = BlockShape(FEW_STREAMS, block_records)
        if shuffle == "block":
            shape = shape_for(catalog, global_batch, block_records)
        order = (global_batch, seed, epoch, shuffle, tail, data, shape.block_records, balance)
        by_length = catalog.ids_by_length if shuffle == "length" else None
        blocks = (shape.streams, shape.group_begins)
        kind = catalog.format
        return cls(records, *order, catalog.lengths, by_length, catalog.draws, *blocks, kind.pads, kind.draws)

    def require_catalog(self, catalog: RecordTable) -> None:
        """Raise `PlanError` unless the plan was made for the data of `catalog`."""
        if (self.num_records, self.data_fingerprint) != (catalog.epoch_length, catalog.fingerprint):
            fact = (
                f"The plan is for {self.num_records} records, of other data than the catalog's {catalog.epoch_length}."
            )
            conflict = "Record ids of one mean nothing in the other."
            raise PlanError(fact, conflict, "make the plan with ShardPlan.for_catalog(catalog, ...).")

    @property
    def steps(self) -> int:
        """Steps of the epoch: ceil(N / G) with masking, floor(N / G) with dropping."""
        full, rest = divmod(self.num_records, self.global_batch)
        return full + (self.tail == "mask" and rest > 0)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of what must stay equal for a position to keep its meaning: data, N, G, seed, shuffle, tail.

        With `shuffle="block"` the blocks too. Neither the epoch, which is part of the position, nor the number of ranks
        and the balance, which change no step's set of records.
        """
        fields = (self.data_fingerprint, self.num_records, self.global_batch, self.seed, self.shuffle, self.tail)
        blocks = self._blocks.identity() if self.shuffle == "block" else ()
        return hashlib.sha256(repr(("data_sharding.plan/1", *fields, *blocks)).encode()).hexdigest()

    def batch(self, step: int) -> StepBatch:
        """The whole global batch of a step: ids int64[G], weights float32[G]. Errors as `shard`."""
        return self.shard(0, 1, step)

    def shard(self, rank: int, size: int, step: int) -> StepBatch:
        """Rank r's part of the global batch of a step, for W ranks: its slice [r*G//W, (r+1)*G//W).

        With `balance="bytes"`, as many slots that were dealt to it.
        Raises PlanError (the step is outside [0, steps), the rank outside [0, size), or G < W).
        """
        step = checks.whole("step", step)
        ids, weights = self.shards(rank, size, range(step, step + 1))
        return StepBatch(ids[0], weights[0])

    def shards(self, rank: int, size: int, steps: range) -> StepBatch:
        """`shard` for several steps at once, as rows: ids int64[s, k], weights float32[s, k].

        This costs little more than one step. With `balance="bytes"` every rank computes the whole global batches.
        Errors as `shard`; the range must not be empty.
        """
        drawn, weights = self.drawn(rank, size, steps)
        return StepBatch(self.records(drawn), weights)

    def drawn(self, rank: int, size: int, steps: range, slices: int = 1) -> StepBatch:
        """As `shards`, but numbers of the epoch's draws in the place of ids, each of which comes once an epoch.

        Args: `slices`: of so many ranks, from `rank` on, one after the other.
        """
        self._check_slice(rank, size, steps)
        first, end = rank * self.global_batch // size, (rank + slices) * self.global_batch // size
        if self.balance == "records":
            return self._slots(steps, first, end)
        parts = [(batch.ids[:, first:end], batch.weights[:, first:end]) for _, batch in self._by_rank(size, steps)]
        return StepBatch(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def records(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids int64[...] of the records that the epoch's draws int64[...] stand for; the same numbers without rule."""
        return drawn if self.draws is None else self.draws.records(drawn, self.epoch)

    def by_rank(self, size: int, steps: range) -> Iterator[tuple[range, StepBatch]]:
        """Whole global batches in the order of the W ranks that read them, some steps at a time (a few MiB).

        Yields the steps, and their ids int64[s, G] and weights float32[s, G], of which columns [r*G//W, (r+1)*G//W) are
        rank r's. Errors as `shard`.
        """
        for some, (drawn, weights) in self._by_rank(size, steps):
            yield some, StepBatch(self.records(drawn), weights)

    def _by_rank(self, size: int, steps: range) -> Iterator[tuple[range, StepBatch]]:
        """As `by_rank`, with numbers of draws."""
        together = max(1, _BLOCK_SLOTS // self.global_batch)
        for begin in range(0, len(steps), together):
            some = steps[begin : begin + together]
            self._check_slice(0, size, some)
            batch = self._slots(some, 0, self.global_batch)
            yield some, self._dealt(batch, some, size) if self.balance == "bytes" and size > 1 else batch

    def longest(self, steps: range) -> NDArray[np.int64]:
        """int64[s], length of the longest record that any rank reads in each of these steps. Needs `lengths`."""
        assert self.lengths is not None
        parts = [self.lengths[batch.ids].max(axis=1) for _, batch in self.by_rank(1, steps)]
        return np.concatenate(parts)

    def dropped(self) -> NDArray[np.int64]:
        """Ids int64[N mod G] of the records that `tail="drop"` leaves out of this epoch; none with "mask"."""
        last = np.arange(min(self.steps * self.global_batch, self.num_records), self.num_records)
        return self.records(self._drawn_at(last))

    @property
    def block_steps(self) -> int:
        """Steps in which a block is read to its end; of groups, which have any length, 0."""
        return 0 if self.group_begins is not None else self._blocks.steps(self.global_batch)

    def block_ranges(self, rank: int, size: int, ids: NDArray[np.int64], slices: int = 1) -> NDArray[np.int64] | None:
        """What rank r of W reads together with each of its records ids int64[k]: ranges int64[k, 2] of its records.

        `slices` is as for `drawn`.

        None where records are not shuffled in blocks, are decoded in groups, or are drawn by a rule.
        """
        if not isinstance(self._order, BlockShuffle) or self.draws is not None:
            return None
        first, end = rank * self.global_batch // size, (rank + slices) * self.global_batch // size
        ranges = self._order.ranges(ids, first, end)
        # With fewer records than a global batch, a masked slot repeats a record of another rank's slot.
        is_own = (ranges[:, 0] <= ids) & (ids < ranges[:, 1])
        return np.where(is_own[:, None], ranges, np.stack([ids, ids + 1], axis=1))

    def global_weight(self, step: int) -> float:
        """Real records of a step over all ranks, which a sum over the global batch is divided by. Errors as `shard`."""
        checks.check_step(step, self.steps)
        return float(min(self.global_batch, self.num_records - step * self.global_batch))

    def step_at(self, position: int) -> int:
        """The step that begins when `position` samples have been taken: position / G. PlanError: none begins there."""
        step, rest = divmod(checks.whole("position", position), self.global_batch)
        if rest or not 0 <= step <= self.steps:
            raise PlanError(
                f"Position {position} was asked for.",
                f"Steps of this plan begin at multiples of {self.global_batch} up to {self.steps * self.global_batch}.",
                "resume with the --global-batch-size and the data that the position was written with.",
            )
        return step

    def _check_slice(self, rank: int, size: int, steps: range) -> None:
        for step in (min(steps, default=-1), max(steps, default=-1)):
            checks.check_step(step, self.steps)
        checks.check_rank(rank, size)
        checks.check_batch_fits(self.global_batch, size)

    def _slots(self, steps: range, first: int, end: int) -> StepBatch:
        positions = np.add.outer(np.array(steps, np.int64) * self.global_batch, np.arange(first, end))
        return StepBatch(self._drawn_at(positions), (positions < self.num_records).astype(np.float32))

    def _dealt(self, batch: StepBatch, steps: range, size: int) -> StepBatch:
        assert self.lengths is not None  # as __post_init__ has checked
        lengths = np.where(batch.weights > 0, self.lengths[self.records(batch.ids)], MASKED)
        order = deal(lengths, np.array(steps, np.int64), size)
        rows = np.arange(len(order))[:, None]
        return StepBatch(batch.ids[rows, order], batch.weights[rows, order])

    @functools.cached_property
    def _order(self) -> Permutation | BlockShuffle | GroupShuffle | LengthBuckets:
        if self.shuffle == "block":
            return self._blocks.order(self.num_records, self.global_batch, self.seed, self.epoch)
        if self.shuffle == "length":
            assert self.by_length is not None  # as __post_init__ has checked
            return LengthBuckets(self.by_length, self.global_batch, self.seed, self.epoch)
        return Permutation(self.num_records // self._together, self.seed, self.epoch)

    @functools.cached_property
    def _blocks(self) -> BlockShape:
        return BlockShape(min(self.streams, self.global_batch), self.block_records, self.group_begins)

    @property
    def _together(self) -> int:
        return 1 if self.draws is None else self.draws.together

    def _drawn_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.shuffle == "block":
            # A masked slot repeats the step before, so that it reads from a block that its rank has open.
            earlier = np.where(positions >= self.num_records, positions - self.global_batch, positions)
            return self._order(np.where(earlier < 0, positions, earlier) % self.num_records)
        positions = positions % self.num_records
        if self.shuffle == "none":
            return positions
        if (together := self._together) == 1:
            return self._order(positions)
        groups, places = np.divmod(positions, together)
        return self._order(groups) * together + places
