"""Batches of similar length: each record once, and little padding, for any number of records, batch and workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_sharding import Catalog, PlanError, ShardPlan


def catalog_of(lengths: NDArray[np.int64]) -> Catalog:
    return Catalog.of({"x": np.zeros(len(lengths), np.float32)}, lengths=lengths, version="1")


def plan_of(catalog: Catalog, batch: int, seed: int = 0, epoch: int = 0, shuffle: str = "length") -> ShardPlan:
    return ShardPlan.for_catalog(catalog, global_batch=batch, seed=seed, epoch=epoch, shuffle=shuffle)  # type: ignore[arg-type]


@given(st.integers(1, 400), st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**40), st.integers(0, 3))
def test_each_record_comes_once(count: int, batch: int, size: int, seed: int, epoch: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 50, count)
    plan, size = plan_of(catalog_of(lengths), batch, seed, epoch), min(size, batch)
    ids = []
    for step in range(plan.steps):
        parts = [plan.shard(rank, size, step) for rank in range(size)]
        ids += np.concatenate([part.ids[part.weights > 0] for part in parts]).tolist()
        assert np.concatenate([part.ids for part in parts]).tolist() == plan.batch(step).ids.tolist()
    assert sorted(ids) == list(range(count))


def test_padding_is_a_fraction_of_that_of_random_batches() -> None:
    lengths = np.random.default_rng(3).lognormal(5, 0.8, 40_000).astype(np.int64) + 1
    catalog, wasted = catalog_of(lengths), {}
    for shuffle in ("length", "global"):
        plan = plan_of(catalog, 64, shuffle=shuffle)
        longest = [lengths[plan.batch(step).ids].max() for step in range(plan.steps)]
        wasted[shuffle] = 1 - lengths.sum() / (64 * sum(longest))
    assert wasted["length"] < 0.15
    assert wasted["global"] > 0.6


def test_epochs_and_seeds_have_other_batches_in_another_order() -> None:
    catalog = catalog_of(np.arange(1000) // 3 + 1)
    first = [set(plan_of(catalog, 10).batch(step).ids.tolist()) for step in range(100)]
    for other in (plan_of(catalog, 10, epoch=1), plan_of(catalog, 10, seed=1)):
        batches = [set(other.batch(step).ids.tolist()) for step in range(100)]
        assert sum(batch in first for batch in batches) < 5
    means = np.array([np.mean(list(batch)) for batch in first])
    assert abs(np.corrcoef(means, np.arange(100))[0, 1]) < 0.3  # long ones are not all at the end


def test_what_has_no_lengths_is_refused() -> None:
    with pytest.raises(PlanError, match="without the order"):
        ShardPlan(10, 2, 0, 0, "length")
    with pytest.raises(PlanError, match="more or less than once"):
        plan_of(catalog_of(np.arange(1, 9)).repeat(2), 2)
