"""The audit equals a plain count of what was read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import CoverageAudit, PlanError

N = 12
reads = st.lists(st.lists(st.tuples(st.integers(0, N - 1), st.sampled_from([0.0, 1.0])), max_size=10), max_size=6)


def audit_of(batches: list[list[tuple[int, float]]]) -> CoverageAudit:
    audit = CoverageAudit(N)
    for batch in batches:
        ids, weights = np.array(batch).reshape(-1, 2).T
        audit.add(ids.astype(np.int64), weights.astype(np.float32))
    return audit


@given(reads)
def test_equals_a_plain_count(batches: list[list[tuple[int, float]]]) -> None:
    audit = audit_of(batches)
    counts = Counter(identity for batch in batches for identity, weight in batch if weight)
    assert audit.missing().tolist() == [identity for identity in range(N) if not counts[identity]]
    assert audit.duplicates().tolist() == [identity for identity in range(N) if counts[identity] > 1]
    assert audit.complete == all(counts[identity] == 1 for identity in range(N))


@given(reads, reads)
def test_merging_equals_reading_both(one: list[list[tuple[int, float]]], other: list[list[tuple[int, float]]]) -> None:
    together = audit_of(one + other).to_array()
    merged = audit_of(one)
    merged.merge(audit_of(other))
    assert np.array_equal(merged.to_array(), together)
    summed = CoverageAudit.from_array(audit_of(one).to_array() + audit_of(other).to_array())
    assert np.array_equal(summed.to_array(), together)


def test_the_array_is_a_copy() -> None:
    audit = CoverageAudit(N)
    audit.to_array()[:] = 1
    assert audit.missing().size == N


def test_wrong_input_is_refused() -> None:
    audit = CoverageAudit(N)
    ones = np.ones(1, np.float32)
    for outside in (-1, N):
        with pytest.raises(PlanError, match="covers 0 to 11"):
            audit.add(np.array([outside]), ones)
    with pytest.raises(PlanError, match="own weight"):
        audit.add(np.array([1, 2]), ones)
    with pytest.raises(PlanError, match="different data"):
        audit.merge(np.zeros(N + 1, np.int32))
    with pytest.raises(PlanError, match="nothing to audit"):
        CoverageAudit(0)
    assert audit.missing().size == N
