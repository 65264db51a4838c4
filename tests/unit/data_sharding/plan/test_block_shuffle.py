"""The block order: all records once, neighbours read together and by one rank only, and still a shuffle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.plan.block_shape import OPEN_BYTES, BlockShape, shape_for
from data_sharding.plan.block_shuffle import BlockShuffle


@st.composite
def block_plans(draw: st.DrawFn) -> ds.ShardPlan:
    global_batch = draw(st.integers(1, 160))
    num_records = draw(st.integers(1, 2500))
    block = draw(st.sampled_from([1, 2, 7, 16, 64, 5000]))
    seed, epoch, streams = draw(st.integers(-9, 9)), draw(st.integers(0, 9)), draw(st.integers(1, 200))
    return ds.ShardPlan(num_records, global_batch, seed, epoch, "block", block_records=block, streams=streams)


def first_slots(plan: ds.ShardPlan) -> list[int]:
    """The first slot of each stream, as the docstring says."""
    streams = min(plan.streams, plan.global_batch)
    return [stream * plan.global_batch // streams for stream in range(streams)]


def stream_ids(plan: ds.ShardPlan) -> list[NDArray[np.int64]]:
    """Ids of each stream, step by step."""
    ids, weights = plan.shards(0, 1, range(plan.steps))
    parts = (np.split(array, first_slots(plan)[1:], axis=1) for array in (ids, weights))
    return [of_stream[real > 0] for of_stream, real in zip(*parts, strict=True)]


def ranges_of(plan: ds.ShardPlan, rank: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The records of a rank in the order in which it reads them, and the range that it reads with each."""
    ids, weights = plan.shards(rank, size, range(plan.steps))
    mine = ids[weights > 0]
    ranges = plan.block_ranges(rank, size, mine)
    assert ranges is not None
    return mine, ranges


@given(block_plans())
def test_every_position_has_its_own_record(plan: ds.ShardPlan) -> None:
    ids, weights = plan.shards(0, 1, range(plan.steps))
    assert sorted(ids[weights > 0].tolist()) == list(range(plan.num_records))


@given(st.integers(1, 2**40), st.integers(1, 10_000), st.integers(1, 10**6), st.data())
def test_any_position_alone_at_any_size(num_records: int, global_batch: int, block: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, num_records - 1), unique=True, min_size=1, max_size=6))
    order = BlockShuffle(num_records, global_batch, data.draw(st.integers(1, global_batch)), block, 1, 2)
    together = order(np.array(positions)).tolist()
    assert [int(order(np.array([position]))[0]) for position in positions] == together
    assert all(0 <= identity < num_records for identity in together)
    assert len(set(together)) == len(positions)


@given(block_plans())
def test_streams_are_neighbouring_records(plan: ds.ShardPlan) -> None:
    for ids in filter(len, stream_ids(plan)):
        gaps = np.diff(np.sort(ids), append=ids.min() + plan.num_records)
        assert (gaps > 1).sum() <= 1  # one run, on the circle of records


@given(block_plans())
def test_each_step_takes_of_every_stream_as_many_records_as_it_has_slots(plan: ds.ShardPlan) -> None:
    slots = np.diff(first_slots(plan), append=plan.global_batch)
    assert slots.max() - slots.min() <= 1
    assert (slots >= 1).all()


@given(block_plans(), st.data())
def test_the_ranges_of_a_rank_are_its_records_and_no_others(plan: ds.ShardPlan, data: st.DataObject) -> None:
    """Every byte is read once, by one rank, if a range is kept from its first record to its last one."""
    size = data.draw(st.integers(1, plan.global_batch))
    read: list[int] = []
    for rank in range(size):
        mine, ranges = ranges_of(plan, rank, size)
        assert ((ranges[:, 0] <= mine) & (mine < ranges[:, 1])).all()
        whole = [np.arange(begin, end) for begin, end in np.unique(ranges, axis=0)] if len(mine) else []
        assert sorted(np.concatenate([np.empty(0, int), *whole]).tolist()) == sorted(mine.tolist())
        read += mine.tolist()
    assert sorted(read) == list(range(plan.num_records))


@given(block_plans(), st.data())
def test_a_rank_has_one_range_of_each_of_its_streams_open(plan: ds.ShardPlan, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, plan.global_batch))
    rank = data.draw(st.integers(0, size - 1))
    first, end = rank * plan.global_batch // size, (rank + 1) * plan.global_batch // size
    streams = np.unique(np.searchsorted(first_slots(plan), np.arange(first, end), "right"))
    for step in range(plan.steps):
        ids, weights = plan.shard(rank, size, step)
        ranges = plan.block_ranges(rank, size, ids[weights > 0])
        assert ranges is not None
        # The circle of records is cut at one place, where a range becomes two.
        assert len(np.unique(ranges, axis=0)) <= len(streams) + 1


@given(block_plans(), st.data())
def test_no_more_than_two_ranks_share_a_block(plan: ds.ShardPlan, data: st.DataObject) -> None:
    """Where there are no more ranks than streams: then a block is read by one request or two."""
    slots = first_slots(plan)
    size = data.draw(st.integers(1, len(slots)))
    cuts = [rank * plan.global_batch // size for rank in range(1, size)]
    inside = np.searchsorted(slots, [cut for cut in cuts if cut not in slots], "right")
    assert len(set(inside.tolist())) == len(inside)


@given(block_plans(), st.data())
def test_masked_slots_read_of_blocks_that_the_rank_has_open(plan: ds.ShardPlan, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, plan.global_batch))
    for rank in range(size):
        ids, weights = plan.shards(rank, size, range(plan.steps))
        if plan.steps > 1:
            assert set(ids.ravel().tolist()) == set(ids[weights > 0].tolist())


@given(block_plans(), st.data())
def test_resumed_at_any_step_with_any_size_it_goes_on_as_planned(plan: ds.ShardPlan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, plan.steps - 1))
    size = data.draw(st.integers(1, plan.global_batch))
    parts = [plan.shards(rank, size, range(first, plan.steps)) for rank in range(size)]
    whole = plan.shards(0, 1, range(plan.steps))
    assert np.array_equal(np.concatenate([part.ids for part in parts], axis=1), whole.ids[first:])
    assert np.array_equal(np.concatenate([part.weights for part in parts], axis=1), whole.weights[first:])


class Records:
    """So many records of so many bytes each."""

    group_begins = draws = None

    def __init__(self, count: int, each: int) -> None:
        self.epoch_length, self.total_bytes = count, count * each

    def __len__(self) -> int:
        return self.epoch_length


@given(st.integers(1, 10**9), st.integers(1, 10**8), st.integers(1, 10**5))
def test_open_blocks_fit_into_memory(count: int, each: int, global_batch: int) -> None:
    shape = shape_for(Records(count, each), global_batch, 64)
    assert min(64, global_batch) <= shape.streams <= global_batch
    assert 1 <= shape.block_records <= 64
    # A step's own records are in memory anyway.
    assert global_batch * shape.steps(global_batch) * each <= max(OPEN_BYTES, max(64, global_batch) * each)


@pytest.mark.parametrize(
    ("count", "each", "global_batch", "shape"),
    [
        (10**6, 1_000, 127, BlockShape(127, 64)),
        (10**6, 300, 1024, BlockShape(1024, 64)),
        (10**5, 1_000, 1024, BlockShape(342, 64)),
        (10**6, 100_000, 256, BlockShape(64, 41)),
        (10**6, 100_000, 65, BlockShape(65, 41)),
        (1_000, 10**9, 8, BlockShape(8, 1)),
        (5, 10, 3, BlockShape(3, 64)),
    ],
)
def test_streams_are_as_many_as_fit(count: int, each: int, global_batch: int, shape: BlockShape) -> None:
    assert shape_for(Records(count, each), global_batch, 64) == shape


def classes_in_a_batch(global_batch: int, shuffle: ds.plan.shard_plan.Shuffle) -> float:
    """How many of 100 classes a batch has where 100,000 records are sorted by class."""
    shape = shape_for(Records(100_000, 1000), global_batch, 64)
    plan = ds.ShardPlan(100_000, global_batch, 3, 0, shuffle, block_records=shape.block_records, streams=shape.streams)
    return float(np.mean([len(np.unique(plan.batch(step).ids // 1000)) for step in range(0, plan.steps - 1, 7)]))


@pytest.mark.parametrize("global_batch", [61, 127, 128, 254, 256, 1024])
def test_batches_are_mixed_as_well_as_by_a_global_shuffle(global_batch: int) -> None:
    """Before there were as many streams as divide the global batch: 3.1 classes of 127, 62 of 128, 63 of 256."""
    assert classes_in_a_batch(global_batch, "block") >= 0.97 * classes_in_a_batch(global_batch, "global")


def test_streams_come_to_new_blocks_in_turn() -> None:
    streams, block = 64, 64
    ids = ds.ShardPlan(streams * 1000, streams, 0, 0, "block", block_records=block).shards(0, 1, range(1000)).ids
    for own, most in ((slice(0, 64), 3), (slice(0, 8), 2), (slice(40, 48), 2)):  # all streams, and those of a rank of 8
        far = (np.abs(np.diff(ids[:, own], axis=0)) >= block).sum(axis=1)
        assert far.sum() > 10 * (own.stop - own.start)
        assert far.max() <= most


def test_every_record_is_equally_likely_at_every_place_and_dropped() -> None:
    num_records, epochs = 107, 4000
    plans = [ds.ShardPlan(num_records, 12, 3, epoch, "block", "drop", block_records=4) for epoch in range(epochs)]
    firsts = np.array([plan.batch(0).ids[[0, 5]] for plan in plans])
    dropped = np.array([plan.dropped() for plan in plans])
    for column in (*firsts.T, dropped[:, 0], dropped[:, -1]):
        expected = epochs / num_records
        chi_square = ((np.bincount(column, minlength=num_records) - expected) ** 2 / expected).sum()
        # Mean n-1 and variance 2(n-1); the keys are fixed, so this cannot flake.
        assert abs(chi_square - (num_records - 1)) < 5 * np.sqrt(2 * (num_records - 1))


def neighbours_correlate(rows: NDArray[np.float64]) -> float:
    centred = rows - rows.mean(axis=1, keepdims=True)
    return float(np.corrcoef(centred[:, :-1].ravel(), centred[:, 1:].ravel())[0, 1])


def test_blocks_and_their_records_are_in_no_order() -> None:
    block, streams, draws = 64, 64, 6400
    ids = ds.ShardPlan(streams * draws, streams, 5, 0, "block").shards(0, 1, range(draws)).ids.T.astype(float)
    whole = ids[np.ptp(ids, axis=1) < draws]  # not the stream that goes on from the last record to the first
    assert len(whole) >= streams - 1
    blocks = whole[:, ::block]
    inside = ids[0].reshape(-1, block)  # stream 0 begins with a full block
    assert (np.ptp(inside, axis=1) == block - 1).all()
    for rows in (blocks, inside):
        expected = -1 / (rows.shape[1] - 1)  # of a shuffled row
        assert abs(neighbours_correlate(rows) - expected) < 5 / np.sqrt(rows.size)
