"""The block order: all records once, neighbours read together, streams that belong to ranks, and still a shuffle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.plan.block_shuffle import BlockShuffle, stream_count


@st.composite
def block_plans(draw: st.DrawFn) -> ds.ShardPlan:
    global_batch = draw(st.integers(1, 160))
    num_records = draw(st.integers(1, 2500))
    block = draw(st.sampled_from([1, 2, 7, 16, 64, 5000]))
    return ds.ShardPlan(
        num_records, global_batch, draw(st.integers(-9, 9)), draw(st.integers(0, 9)), "block", block_records=block
    )


def runs_needed(ids: NDArray[np.int64], length: int) -> int:
    """How many runs of `length` neighbouring records it takes at least to hold all ids."""
    runs, end = 0, -1
    for identity in np.sort(ids).tolist():
        if identity >= end:
            runs, end = runs + 1, identity + length
    return runs


def stream_ids(plan: ds.ShardPlan) -> list[NDArray[np.int64]]:
    """Ids of each stream in the order in which they are read, from the slots that the docstring names."""
    ids, weights = plan.shards(0, 1, range(plan.steps))
    return [
        stream_ids[stream_weights > 0]
        for stream_ids, stream_weights in zip(
            np.split(ids, stream_count(plan.global_batch), axis=1),
            np.split(weights, stream_count(plan.global_batch), axis=1),
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("global_batch", "streams"),
    [(1, 1), (4, 4), (64, 64), (96, 48), (128, 64), (100, 50), (67, 1), (134, 2), (4096, 64)],
)
def test_streams_are_the_largest_divisor_up_to_64(global_batch: int, streams: int) -> None:
    assert stream_count(global_batch) == streams


@given(block_plans())
def test_every_position_has_its_own_record(plan: ds.ShardPlan) -> None:
    order = BlockShuffle(plan.num_records, plan.global_batch, plan.block_records, plan.seed, plan.epoch)
    assert sorted(order(np.arange(plan.num_records)).tolist()) == list(range(plan.num_records))


@given(st.integers(1, 2**40), st.integers(1, 10_000), st.integers(1, 10**6), st.data())
def test_any_position_alone_at_any_size(num_records: int, global_batch: int, block: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, num_records - 1), unique=True, min_size=1, max_size=6))
    order = BlockShuffle(num_records, global_batch, block, 1, 2)
    together = order(np.array(positions)).tolist()
    assert [int(order(np.array([position]))[0]) for position in positions] == together
    assert all(0 <= identity < num_records for identity in together)
    assert len(set(together)) == len(positions)


@given(block_plans())
def test_streams_are_neighbouring_records(plan: ds.ShardPlan) -> None:
    for ids in filter(len, stream_ids(plan)):
        gaps = np.diff(np.sort(ids), append=ids.min() + plan.num_records)
        assert (gaps > 1).sum() <= 1  # one run, on the circle of records


@given(block_plans(), st.integers(1, 5), st.data())
def test_few_steps_read_few_blocks_of_each_stream(plan: ds.ShardPlan, steps: int, data: st.DataObject) -> None:
    streams = stream_ids(plan)
    draws = steps * (plan.global_batch // len(streams))
    first = data.draw(st.integers(0, plan.steps - 1)) * (plan.global_batch // len(streams))
    allowed = -(-(draws - 1) // plan.block_records) + 1
    for ids in streams:
        around = {0, plan.num_records - 1} <= set(ids.tolist())  # the circle's seam may cut one block in two
        assert runs_needed(ids[first : first + draws], plan.block_records) <= allowed + around


@given(block_plans(), st.data())
def test_ranks_own_whole_streams_where_their_number_divides_the_streams(
    plan: ds.ShardPlan, data: st.DataObject
) -> None:
    streams = stream_ids(plan)
    size = data.draw(st.sampled_from([size for size in range(1, len(streams) + 1) if len(streams) % size == 0]))
    for rank in range(size):
        ids, weights = plan.shards(rank, size, range(plan.steps))
        own = np.concatenate(streams[rank * len(streams) // size : (rank + 1) * len(streams) // size])
        assert sorted(ids[weights > 0].tolist()) == sorted(own.tolist())
        if plan.steps > 1:  # masked slots do not reach for records of other ranks
            assert set(ids.ravel().tolist()) == set(own.tolist())


@given(block_plans(), st.data())
def test_resumed_at_any_step_with_any_size_it_goes_on_as_planned(plan: ds.ShardPlan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, plan.steps - 1))
    size = data.draw(st.integers(1, plan.global_batch))
    parts = [plan.shards(rank, size, range(first, plan.steps)) for rank in range(size)]
    whole = plan.shards(0, 1, range(plan.steps))
    assert np.array_equal(np.concatenate([part.ids for part in parts], axis=1), whole.ids[first:])
    assert np.array_equal(np.concatenate([part.weights for part in parts], axis=1), whole.weights[first:])


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
