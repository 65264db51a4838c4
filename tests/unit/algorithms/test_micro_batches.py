"""Micro batches are the batch, cut: nothing lost, nothing weighted again."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import LoadedBatch
from hvdtrain.algorithms.micro_batches import count_for_fewer_workers, micro_batches


@given(rows=st.integers(1, 40), count=st.integers(1, 12), masked=st.integers(0, 5), seed=st.integers(0, 99))
def test_they_are_the_batch_in_its_order_and_nearly_equal(rows: int, count: int, masked: int, seed: int) -> None:
    batch = _batch(rows, masked, seed)
    parts = micro_batches(batch, count)
    assert len(parts) == count
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), batch.ids)
    np.testing.assert_array_equal(np.concatenate([part.features["x"] for part in parts]), batch.features["x"])
    sizes = [len(part.ids) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.concatenate([part.weights for part in parts]), batch.weights)
    assert {part.global_weight for part in parts} == {batch.global_weight}


def test_one_micro_batch_is_the_batch_itself() -> None:
    batch = _batch(5, 0, 0)
    assert micro_batches(batch, 1) == [batch]


@given(records=st.integers(1, 4096), asked=st.integers(1, 64), lost=st.integers(0, 63), count=st.integers(1, 8))
def test_fewer_workers_need_no_larger_micro_batches(records: int, asked: int, lost: int, count: int) -> None:
    """Each worker has `records // workers` records, or one more; and so has each of their micro batches."""
    workers = max(1, asked - lost)
    most = records // workers
    found = count_for_fewer_workers(count, workers, asked, most)
    assert count <= found <= max(count, most)
    assert workers < asked or found == count
    if found < most:
        assert math.ceil(math.ceil(records / workers) / found) <= math.ceil(records / (asked * count)) + 1


def _batch(rows: int, masked: int, seed: int) -> LoadedBatch:
    random = np.random.default_rng(seed)
    weights = np.ones(rows, np.float32)
    weights[random.permutation(rows)[:masked]] = 0
    return LoadedBatch(0, random.integers(0, 99, rows), weights, {"x": random.normal(size=(rows, 2))}, 3.0 * rows)
