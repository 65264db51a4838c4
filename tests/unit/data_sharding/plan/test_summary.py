"""What the summary of a plan says is what the ranks read."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data_sharding as ds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 70),
    st.sampled_from([("global", "records"), ("block", "records"), ("none", "records"), ("global", "bytes")]),
    st.sampled_from(["mask", "drop"]),
    st.data(),
)
def test_equals_a_plain_count(
    catalog: ds.Catalog, global_batch: int, order: tuple[str, str], tail: str, data: st.DataObject
) -> None:
    global_batch = min(global_batch, len(catalog)) if tail == "drop" else global_batch
    plan = ds.ShardPlan.for_catalog(
        catalog, global_batch=global_batch, seed=1, epoch=2, shuffle=order[0], tail=tail, balance=order[1]
    )
    size = data.draw(st.integers(1, global_batch))
    records, sizes, slowest = [0] * size, [0] * size, 0
    for step in range(plan.steps):
        loads = []
        for rank in range(size):
            part = plan.shard(rank, size, step)
            real = part.ids[part.weights > 0]
            loads.append(int(catalog.lengths[real].sum()))
            records[rank] += len(real)
            sizes[rank] += loads[-1]
        slowest += max(loads)
    summary = ds.per_rank(plan, catalog, size)
    assert summary.records.tolist() == records
    assert summary.bytes.tolist() == sizes
    assert summary.slowest_bytes == slowest
    assert summary.steps == plan.steps
    assert summary.last_step_records == plan.batch(plan.steps - 1).weights.sum()
    assert summary.masked == global_batch - summary.last_step_records
    assert sum(records) + summary.dropped == len(catalog)


def test_other_data_and_too_many_ranks_are_refused(catalog: ds.Catalog) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=0, epoch=0)
    with pytest.raises(ds.PlanError, match="other data than the catalog's 57"):
        ds.per_rank(dataclasses.replace(plan, data_fingerprint="abc"), catalog, 2)
    for size in (0, 9):
        with pytest.raises(ds.PlanError):
            ds.per_rank(plan, catalog, size)


def test_too_many_ranks_are_refused_before_they_are_counted(catalog: ds.Catalog) -> None:
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=4, seed=1, epoch=0)
    tracemalloc.start()
    try:
        with pytest.raises(ds.PlanError, match="smaller than the 3000000 ranks"):
            ds.per_rank(plan, catalog, 3_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
