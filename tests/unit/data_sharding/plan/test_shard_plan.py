"""The plan: every record exactly once, the same global batches at every number of ranks, resume anywhere."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import data_sharding as ds

records = st.integers(1, 200)
batches = st.integers(1, 64)
seeds = st.integers(-(10**9), 10**9)
shuffles = st.sampled_from(["global", "block", "none"])


@st.composite
def plans(draw: st.DrawFn, tail: str | None = None) -> ds.ShardPlan:
    num_records = draw(records)
    chosen = tail or draw(st.sampled_from(["mask", "drop"]))
    global_batch = draw(st.integers(1, num_records) if chosen == "drop" else batches)
    order = (draw(seeds), draw(st.integers(0, 99)), draw(shuffles))
    return ds.ShardPlan(num_records, global_batch, *order, chosen, block_records=draw(st.integers(1, 40)))


@st.composite
def plans_with_sizes(draw: st.DrawFn) -> tuple[ds.ShardPlan, int]:
    plan = draw(plans())
    return plan, draw(st.integers(1, plan.global_batch))


def real_ids(batch: ds.StepBatch) -> list[int]:
    return batch.ids[batch.weights > 0].tolist()


def epoch_order(plan: ds.ShardPlan) -> list[int]:
    return real_ids(plan.shards(0, 1, range(plan.steps)))


@given(plans_with_sizes())
def test_slices_make_up_the_same_global_batch_for_every_size(plan_and_size: tuple[ds.ShardPlan, int]) -> None:
    plan, size = plan_and_size
    lengths = set()
    for step in range(plan.steps):
        whole, slices = plan.batch(step), [plan.shard(rank, size, step) for rank in range(size)]
        assert np.array_equal(np.concatenate([part.ids for part in slices]), whole.ids)
        assert np.array_equal(np.concatenate([part.weights for part in slices]), whole.weights)
        assert plan.global_weight(step) == whole.weights.sum()
        lengths.add(tuple(len(part.ids) for part in slices))
    (constant,) = lengths
    assert max(constant) - min(constant) <= 1
    assert min(constant) >= 1


@given(plans(tail="mask"), st.data())
def test_masked_epoch_reads_every_record_once(plan: ds.ShardPlan, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, plan.global_batch))
    read = [real_ids(plan.shard(rank, size, step)) for step in range(plan.steps) for rank in range(size)]
    assert sorted(sum(read, [])) == list(range(plan.num_records))
    assert plan.steps == -(-plan.num_records // plan.global_batch)


@given(plans(tail="drop"))
def test_dropped_epoch_loses_the_end_of_the_order_only(plan: ds.ShardPlan) -> None:
    masked = dataclasses.replace(plan, tail="mask")
    assert plan.steps == plan.num_records // plan.global_batch
    for step in range(plan.steps):
        assert real_ids(plan.batch(step)) == real_ids(masked.batch(step)) == plan.batch(step).ids.tolist()
    read, dropped = epoch_order(plan), plan.dropped().tolist()
    assert len(dropped) == plan.num_records % plan.global_batch
    assert sorted(read + dropped) == list(range(plan.num_records))
    assert masked.dropped().tolist() == []


@given(plans_with_sizes(), st.data())
def test_several_steps_at_once_are_the_single_ones(
    plan_and_size: tuple[ds.ShardPlan, int], data: st.DataObject
) -> None:
    plan, size = plan_and_size
    rank = data.draw(st.integers(0, size - 1))
    first = data.draw(st.integers(0, plan.steps - 1))
    steps = range(first, data.draw(st.integers(first + 1, plan.steps)), data.draw(st.integers(1, 3)))
    ids, weights = plan.shards(rank, size, steps)
    for row, step in enumerate(steps):
        assert np.array_equal(ids[row], plan.shard(rank, size, step).ids)
        assert np.array_equal(weights[row], plan.shard(rank, size, step).weights)


@pytest.mark.parametrize("steps", [range(0), range(9, 11), range(-1, 2)])
def test_impossible_ranges_of_steps_are_refused(steps: range) -> None:
    with pytest.raises(ds.PlanError, match="steps 0 to 9"):
        ds.ShardPlan(100, 10, 0, 0).shards(0, 1, steps)


@given(plans())
def test_batches_have_static_shapes_and_readable_ids(plan: ds.ShardPlan) -> None:
    for step in range(plan.steps):
        ids, weights = plan.batch(step)
        assert (ids.shape, ids.dtype) == ((plan.global_batch,), np.int64)
        assert (weights.shape, weights.dtype) == ((plan.global_batch,), np.float32)
        assert set(weights.tolist()) <= {0.0, 1.0}
        assert ids.min() >= 0
        assert ids.max() < plan.num_records


@given(plans(tail="mask"))
def test_no_shuffle_keeps_the_order(plan: ds.ShardPlan) -> None:
    plain = dataclasses.replace(plan, shuffle="none")
    assert epoch_order(plain) == list(range(plan.num_records))


@given(records.filter(lambda n: n >= 64), batches, seeds, st.sampled_from(["global", "block"]))
def test_epochs_and_seeds_have_their_own_orders(num_records: int, global_batch: int, seed: int, shuffle: str) -> None:
    # With one record a stream, a block order is one of few: the catalog's, begun at another record.
    assume(shuffle == "global" or num_records >= 2 * global_batch)
    orders = []
    for key in ((seed, 0), (seed, 1), (seed + 1, 0)):
        plan = ds.ShardPlan(num_records, global_batch, *key, shuffle)
        orders.append(epoch_order(plan))
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


@given(plans(), st.integers(0, 10**4))
def test_positions_begin_steps_or_are_refused(plan: ds.ShardPlan, position: int) -> None:
    if position % plan.global_batch == 0 and position // plan.global_batch <= plan.steps:
        assert plan.step_at(position) == position // plan.global_batch
    else:
        with pytest.raises(ds.PlanError, match="--global-batch-size"):
            plan.step_at(position)


@given(plans_with_sizes(), st.integers(0, 9), st.sampled_from(["global", "none"]))
def test_order_of_an_epoch_does_not_depend_on_the_batch_size(
    plan_and_size: tuple[ds.ShardPlan, int], extra: int, shuffle: str
) -> None:
    plan = dataclasses.replace(plan_and_size[0], tail="mask", shuffle=shuffle)
    other = dataclasses.replace(plan, global_batch=plan.global_batch + extra)
    assert epoch_order(plan) == epoch_order(other)


def test_fingerprint_covers_what_gives_positions_their_meaning() -> None:
    plan = ds.ShardPlan(100, 10, 0, 0, data_fingerprint="abc")
    assert dataclasses.replace(plan, epoch=5).fingerprint == plan.fingerprint
    changes = (
        {"num_records": 101},
        {"global_batch": 20},
        {"seed": 1},
        {"shuffle": "none"},
        {"tail": "drop"},
        {"data_fingerprint": "abd"},
    )
    prints = {plan.fingerprint, *(dataclasses.replace(plan, **change).fingerprint for change in changes)}
    assert len(prints) == 1 + len(changes)


def test_fingerprint_covers_the_block_only_where_blocks_are_read() -> None:
    plan = ds.ShardPlan(100, 10, 0, 0)
    assert dataclasses.replace(plan, block_records=8).fingerprint == plan.fingerprint
    blocks = [dataclasses.replace(plan, shuffle="block", block_records=length).fingerprint for length in (8, 64)]
    assert len({plan.fingerprint, *blocks}) == 3


def test_fingerprint_leaves_out_the_balance() -> None:
    plan = ds.ShardPlan(100, 10, 0, 0)
    assert dataclasses.replace(plan, balance="bytes", lengths=np.arange(100)).fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("order", "fingerprint", "ids"),
    [
        (
            ("global", "mask"),
            "260e95052a7f145e34f0e7fc7d06fdca1ab79f6f18aef1200adf45851c55e599",
            [731, 1110, 1514, 1275, 778, 573],
        ),
        (
            ("none", "drop"),
            "5309adbda730cb24698afc533c0ec1c712a3edf1032b5f01f0905c48c3e7a72f",
            [320, 321, 322, 323, 324, 325],
        ),
        (
            ("block", "mask"),
            "386056d2c68fac946b8118f239bef30da46f299c564f7db390c6788cecb05823",
            [443, 466, 491, 529, 553, 582],
        ),
    ],
)
def test_positions_of_saved_runs_stay_valid(order: tuple[str, str], fingerprint: str, ids: list[int]) -> None:
    # Written down once: another fingerprint would refuse every saved position, another order give it other records.
    # That of "block" is the second one by that name.
    plan = ds.ShardPlan(1797, 64, 42, 3, *order, "abc", 16)
    assert plan.fingerprint == fingerprint
    assert plan.batch(5).ids[:6].tolist() == ids


def test_plan_for_a_catalog(catalog: ds.Catalog) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=1, epoch=2, shuffle="none", tail="drop")
    assert plan == ds.ShardPlan(57, 8, 1, 2, "none", "drop", catalog.fingerprint)
    blocks = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=1, epoch=2, shuffle="block", block_records=5)
    assert blocks == ds.ShardPlan(57, 8, 1, 2, "block", "mask", catalog.fingerprint, 5, streams=8)
    balanced = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=1, epoch=2, balance="bytes")
    assert np.array_equal(balanced.lengths, catalog.lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_records": 0}, "no records"),
        ({"global_batch": 0}, "--global-batch-size"),
        ({"epoch": -1}, "count from 0"),
        ({"shuffle": "blok"}, "global or block or length or none"),
        ({"tail": "pad"}, "mask or drop"),
        ({"balance": "time"}, "records or bytes"),
        ({"balance": "bytes"}, "with none for 100 records"),
        ({"balance": "bytes", "lengths": np.ones(99, np.int64)}, r"lengths of shape \(99,\)"),
        ({"balance": "bytes", "lengths": np.ones(100, np.int64), "shuffle": "block"}, "every stream"),
        ({"block_records": 0}, "set block_records"),
        ({"tail": "drop", "global_batch": 101}, "has no step"),
    ],
)
def test_impossible_plans_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ds.PlanError, match=message):
        dataclasses.replace(ds.ShardPlan(100, 10, 0, 0), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "size", "step", "message"),
    [
        (0, 11, 0, "set --global-batch-size to 11 or more"),
        (2, 2, 0, "Rank 2 of size 2"),
        (-1, 2, 0, "Rank -1"),
        (0, 0, 0, "size 0"),
        (0, 1, 10, "steps 0 to 9"),
        (0, 1, -1, "Step -1"),
    ],
)
def test_impossible_slices_are_refused(rank: int, size: int, step: int, message: str) -> None:
    with pytest.raises(ds.PlanError, match=message):
        ds.ShardPlan(100, 10, 0, 0).shard(rank, size, step)
