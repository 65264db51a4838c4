"""Bytes dealt evenly: the same records in every step, the same counts on every rank, and no step made worse."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.plan.balance import slice_begins

lengths_of_records = st.integers(0, 20) | st.integers(0, 10**6) | st.just(0)


@st.composite
def balanced_plans(draw: st.DrawFn) -> tuple[ds.ShardPlan, int]:
    lengths = np.array(draw(st.lists(lengths_of_records, min_size=1, max_size=120)), np.int64)
    shuffle, tail = draw(st.sampled_from(["global", "none"])), draw(st.sampled_from(["mask", "drop"]))
    global_batch = draw(st.integers(1, len(lengths) if tail == "drop" else 40))
    plan = ds.ShardPlan(
        len(lengths), global_batch, draw(st.integers(0, 9)), 0, shuffle, tail, balance="bytes", lengths=lengths
    )
    return plan, draw(st.integers(1, global_batch))


def loads(plan: ds.ShardPlan, size: int) -> NDArray[np.int64]:
    """Bytes of real records, int64[steps, size], from what each rank is told to read."""
    columns = []
    for rank in range(size):
        ids, weights = plan.shards(rank, size, range(plan.steps))
        columns.append(np.where(weights > 0, plan.lengths[ids], 0).sum(axis=1))
    return np.stack(columns, axis=1)


def pairs(batch: ds.StepBatch) -> list[tuple[int, float]]:
    return list(zip(batch.ids.tolist(), batch.weights.tolist(), strict=True))


@given(balanced_plans())
def test_the_slots_of_each_step_and_their_numbers_stay(plan_and_size: tuple[ds.ShardPlan, int]) -> None:
    plan, size = plan_and_size
    contiguous = dataclasses.replace(plan, balance="records")
    for step in range(plan.steps):
        parts = [plan.shard(rank, size, step) for rank in range(size)]
        assert sorted(sum(map(pairs, parts), [])) == sorted(pairs(contiguous.batch(step)))
        assert [len(part.ids) for part in parts] == [len(contiguous.shard(r, size, step).ids) for r in range(size)]
        assert pairs(plan.batch(step)) == pairs(contiguous.batch(step))
        real = [part.weights.sum() for part in parts]
        assert max(real) - min(real) <= 1


@given(balanced_plans(), st.data())
def test_several_steps_at_once_are_the_single_ones(
    plan_and_size: tuple[ds.ShardPlan, int], data: st.DataObject
) -> None:
    plan, size = plan_and_size
    rank = data.draw(st.integers(0, size - 1))
    steps = range(data.draw(st.integers(0, plan.steps - 1)), plan.steps, data.draw(st.integers(1, 3)))
    ids, weights = plan.shards(rank, size, steps)
    assert [pairs(ds.StepBatch(*row)) for row in zip(ids, weights, strict=True)] == [
        pairs(plan.shard(rank, size, step)) for step in steps
    ]


@given(balanced_plans())
def test_no_full_step_has_a_larger_load_than_contiguous_slices(plan_and_size: tuple[ds.ShardPlan, int]) -> None:
    plan, size = plan_and_size
    full = plan.num_records // plan.global_batch
    dealt, contiguous = loads(plan, size), loads(dataclasses.replace(plan, balance="records"), size)
    assert (dealt.max(axis=1) <= contiguous.max(axis=1))[:full].all()
    assert np.array_equal(dealt.sum(axis=1), contiguous.sum(axis=1))


@given(balanced_plans(), st.data())
def test_no_load_exceeds_the_mean_by_more_than_the_records_of_the_step_differ(
    plan_and_size: tuple[ds.ShardPlan, int], data: st.DataObject
) -> None:
    plan, _ = plan_and_size
    size = data.draw(st.sampled_from([w for w in range(1, plan.global_batch + 1) if plan.global_batch % w == 0]))
    ids, weights = plan.shards(0, 1, range(plan.steps))
    sizes = np.where(weights > 0, plan.lengths[ids], 0)
    excess = loads(plan, size).max(axis=1) - sizes.sum(axis=1) / size
    assert (excess <= np.ptp(sizes, axis=1) + 1e-6).all()


@pytest.mark.parametrize(
    ("sigma", "global_batch", "size", "most"),
    [(0.3, 64, 2, 0.1), (0.3, 100, 8, 0.3), (1.0, 64, 2, 0.2), (1.0, 96, 8, 0.5), (2.0, 64, 2, 0.6), (2.0, 256, 64, 1)],
)
def test_skewed_sizes_make_shorter_steps(sigma: float, global_batch: int, size: int, most: float) -> None:
    lengths = np.random.default_rng(4).lognormal(8, sigma, 30_000).astype(np.int64)
    dealt = ds.ShardPlan(len(lengths), global_batch, 0, 0, balance="bytes", lengths=lengths)
    # Ranks wait for the fullest one of each step: how far that exceeds the mean is the time that unevenness costs.
    even, plain = (loads(plan, size) for plan in (dealt, dataclasses.replace(dealt, balance="records")))
    waits = [(table.max(axis=1) - table.mean(axis=1)).sum() for table in (even, plain)]
    assert waits[0] < most * waits[1]
    assert even.sum(axis=0).max() < 1.1 * plain.sum(axis=0).max()  # no rank is the fullest one again and again


def test_equal_loads_take_turns_in_being_first() -> None:
    # In every step two long records come first, and one byte is left over after all else is even.
    lengths = np.tile([9, 9, 1, 0], 10)
    plan = ds.ShardPlan(40, 4, 0, 0, "none", balance="bytes", lengths=lengths)
    table = loads(plan, 2)
    assert set(map(tuple, table.tolist())) == {(10, 9), (9, 10)}
    assert table.sum(axis=0).tolist() == [95, 95]


def test_equal_sizes_keep_their_slices() -> None:
    plan = ds.ShardPlan(1000, 30, 0, 0, tail="drop", balance="bytes", lengths=np.full(1000, 7))
    contiguous = dataclasses.replace(plan, balance="records")
    for rank in range(4):
        assert np.array_equal(plan.shards(rank, 4, range(33)).ids, contiguous.shards(rank, 4, range(33)).ids)


def test_slices_begin_where_ranks_do() -> None:
    assert slice_begins(10, 4).tolist() == [0, 2, 5, 7]


@given(balanced_plans(), st.sampled_from(["records", "bytes"]))
def test_whole_batches_by_rank_are_the_ranks_parts(plan_and_size: tuple[ds.ShardPlan, int], balance: str) -> None:
    plan, size = dataclasses.replace(plan_and_size[0], balance=balance), plan_and_size[1]
    seen = []
    for steps, (ids, weights) in plan.by_rank(size, range(plan.steps)):
        seen += steps
        for rank, begin in enumerate(slice_begins(plan.global_batch, size)):
            part = plan.shards(rank, size, steps)
            assert np.array_equal(ids[:, begin : begin + part.ids.shape[1]], part.ids)
            assert np.array_equal(weights[:, begin : begin + part.ids.shape[1]], part.weights)
    assert seen == list(range(plan.steps))


@pytest.mark.parametrize(("shuffle", "balance"), [("global", "records"), ("block", "records"), ("global", "bytes")])
def test_going_through_an_epoch_takes_little_memory(shuffle: str, balance: str) -> None:
    lengths = np.arange(1_000_000)
    plan = ds.ShardPlan(len(lengths), 512, 0, 0, shuffle, balance=balance, lengths=lengths)
    tracemalloc.start()
    try:
        steps = sum(len(some) for some, _ in plan.by_rank(8, range(plan.steps)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert steps == plan.steps
    assert peak < 16 * 2**20  # the ids of the epoch alone would be 8 MB, and its work arrays several times that
