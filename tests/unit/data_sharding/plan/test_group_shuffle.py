"""The block order of records that are decoded in groups: all records once, and each group read to its end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.plan.block_shape import FEW_STREAMS, shape_for
from data_sharding.plan.read_cost import decodes_per_group


@st.composite
def group_plans(draw: st.DrawFn) -> ds.ShardPlan:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=60))
    begins = np.cumsum([0, *sizes[:-1]])
    global_batch, streams = draw(st.integers(1, 100)), draw(st.integers(1, 30))
    seed, epoch = draw(st.integers(-9, 9)), draw(st.integers(0, 9))
    return ds.ShardPlan(sum(sizes), global_batch, seed, epoch, "block", streams=streams, group_begins=begins)


def decodes(plan: ds.ShardPlan, rank: int, size: int) -> list[int]:
    """How often a rank comes to each group, where it keeps one group for each stream."""
    assert plan.group_begins is not None
    streams = min(plan.streams, plan.global_batch)
    stream_of = np.searchsorted(
        np.arange(1, streams) * plan.global_batch // streams, np.arange(plan.global_batch), "right"
    )
    first, end = rank * plan.global_batch // size, (rank + 1) * plan.global_batch // size
    ids, weights = plan.shards(rank, size, range(plan.steps))
    came = [0] * len(plan.group_begins)
    groups = np.searchsorted(plan.group_begins, ids, "right") - 1
    for stream in np.unique(stream_of[first:end]).tolist():
        mine = stream_of[first:end] == stream
        order = groups[:, mine][weights[:, mine] > 0]
        for group in order[np.diff(order, prepend=-1) != 0].tolist():
            came[group] += 1
    return came


@given(group_plans())
def test_every_record_comes_once(plan: ds.ShardPlan) -> None:
    ids, weights = plan.shards(0, 1, range(plan.steps))
    assert sorted(ids[weights > 0].tolist()) == list(range(plan.num_records))


@given(group_plans(), st.data())
def test_each_group_is_decoded_once_by_a_rank_but_where_it_is_cut(plan: ds.ShardPlan, data: st.DataObject) -> None:
    """Streams cut it, and so does the place where the circle of records begins in this epoch."""
    streams = min(plan.streams, plan.global_batch)
    size = data.draw(st.integers(1, plan.global_batch))
    came = np.sum([decodes(plan, rank, size) for rank in range(size)], axis=0)
    assert (came >= 1).all()
    groups = len(plan.group_begins) if plan.group_begins is not None else 0
    if size == 1:
        assert came.sum() <= groups + streams + 1
    assert came.sum() <= (groups + streams + 1) * (streams + size - 1)
    expected = decodes_per_group(plan, size)
    assert expected is not None
    assert expected >= 1


@given(group_plans(), st.data())
def test_resumed_at_any_step_with_any_size_it_goes_on_as_planned(plan: ds.ShardPlan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, plan.steps - 1))
    size = data.draw(st.integers(1, plan.global_batch))
    parts = [plan.shards(rank, size, range(first, plan.steps)) for rank in range(size)]
    whole = plan.shards(0, 1, range(plan.steps))
    assert np.array_equal(np.concatenate([part.ids for part in parts], axis=1), whole.ids[first:])


def test_groups_and_their_records_come_in_another_order_each_epoch() -> None:
    begins = np.arange(0, 10_000, 100)
    plans = [ds.ShardPlan(10_000, 10, 1, epoch, "block", streams=2, group_begins=begins) for epoch in range(2)]
    orders = [plan.shards(0, 1, range(plan.steps)).ids[:, 0] for plan in plans]
    assert (orders[0] == orders[1]).mean() < 0.01
    blocks = orders[0][: 20 * 5].reshape(5, 20) // 100  # 5 records of a stream in a step: a group lasts 20 steps
    assert all(len(np.unique(block)) <= 2 for block in blocks)
    assert (np.abs(np.diff(orders[0][:20])) > 1).mean() > 0.8


def test_as_many_streams_as_groups_fit_into_memory() -> None:
    class Records:
        draws = None

        def __init__(self, groups: int, each: int) -> None:
            self.group_begins = np.arange(groups) * 100
            self.total_bytes, self.epoch_length = groups * each, groups * 100

        def __len__(self) -> int:
            return self.epoch_length

    assert shape_for(Records(4000, 1 << 20), 256, 64).streams == FEW_STREAMS
    assert shape_for(Records(4000, 16 << 20), 256, 64).streams == 16  # 256 MiB of them
    assert shape_for(Records(72, 1 << 20), 256, 64).streams == 18  # a quarter of all: few are cut
    assert shape_for(Records(4000, 1 << 30), 256, 64).streams == 1
    assert shape_for(Records(4000, 1 << 20), 7, 64).streams == 7


def test_other_groups_are_another_plan() -> None:
    plan = ds.ShardPlan(1000, 10, 1, 0, "block", group_begins=np.arange(0, 1000, 100))
    others = [np.arange(0, 1000, 50), None]
    prints = {ds.ShardPlan(1000, 10, 1, 0, "block", group_begins=begins).fingerprint for begins in others}
    assert len(prints | {plan.fingerprint}) == 3
