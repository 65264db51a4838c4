"""The audit equals a plain count of what was read, wherever and in whatever order it was read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import CatalogError, CoverageAudit, PlanError, ShardPlan

N = 12
reads = st.lists(st.lists(st.tuples(st.integers(0, N - 1), st.sampled_from([0.0, 1.0])), max_size=10), max_size=6)
exclusions = st.lists(st.integers(0, N - 1), max_size=4)


def audit_of(batches: list[list[tuple[int, float]]], excluded: list[int] | None = None, n: int = N) -> CoverageAudit:
    audit = CoverageAudit(n)
    for batch in batches:
        ids, weights = np.array(batch).reshape(-1, 2).T
        audit.add(ids.astype(np.int64), weights.astype(np.float32))
    audit.exclude(np.array(excluded or [], np.int64))
    return audit


def ones(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), np.float32)


@given(reads, exclusions, st.sampled_from([N, 1000]))
def test_equals_a_plain_count(batches: list[list[tuple[int, float]]], excluded: list[int], n: int) -> None:
    audit = audit_of(batches, excluded, n)
    counts = Counter(identity for batch in batches for identity, weight in batch if weight)
    missing = [identity for identity in range(n) if not counts[identity] and identity not in excluded]
    duplicates = [identity for identity in range(n) if counts[identity] > 1]
    assert audit.missing().tolist() == missing
    assert audit.duplicates().tolist() == duplicates
    assert audit.complete == (not missing and not duplicates)
    assert audit.count == counts.total()
    assert audit.to_array().tolist() == [counts[identity] for identity in range(n)]
    assert audit.excluded.tolist() == sorted(set(excluded))
    assert audit.expected_count == n - len(set(excluded))
    assert audit.num_records == n


@given(reads, reads, exclusions, exclusions)
def test_merging_equals_reading_both(
    one: list[list[tuple[int, float]]],
    other: list[list[tuple[int, float]]],
    one_excludes: list[int],
    other_excludes: list[int],
) -> None:
    together = audit_of(one + other, one_excludes + other_excludes)
    parts = [audit_of(one, one_excludes), audit_of(other, other_excludes)]
    before = [part.to_bytes() for part in parts]
    merged = CoverageAudit.union(parts)
    assert merged == together
    assert [part.to_bytes() for part in parts] == before
    assert (merged.count, merged.digest) == (together.count, together.digest)
    assert merged.count == sum(part.count for part in parts)
    assert merged.digest == parts[0].digest ^ parts[1].digest
    assert CoverageAudit.union(reversed(parts)) == together
    summed = CoverageAudit.from_array(parts[0].to_array() + parts[1].to_array())
    assert np.array_equal(summed.to_array(), together.to_array())


@st.composite
def segmented_epochs(draw: st.DrawFn) -> tuple[ShardPlan, list[CoverageAudit]]:
    """An epoch read by changing numbers of ranks, restarted between steps, and the audit of every process."""
    num_records, tail = draw(st.integers(1, 200)), draw(st.sampled_from(["mask", "drop"]))
    global_batch = draw(st.integers(1, num_records if tail == "drop" else 50))
    shuffle, balance = draw(
        st.sampled_from([("global", "records"), ("block", "records"), ("none", "records"), ("global", "bytes")])
    )
    lengths = np.arange(num_records) ** 2 % 97
    plan = ShardPlan(num_records, global_batch, 1, 2, shuffle, tail, "", 8, balance, lengths)
    restarts = sorted(draw(st.lists(st.integers(0, plan.steps), max_size=3)))
    audits = []
    for first, end in zip([0, *restarts], [*restarts, plan.steps], strict=True):
        size = draw(st.integers(1, global_batch))
        for rank in range(size):
            audit = CoverageAudit(num_records)
            for step in range(first, end):
                audit.add(*plan.shard(rank, size, step))
            audits.append(audit)
    return plan, audits


@given(segmented_epochs())
def test_an_epoch_is_complete_across_restarts_and_changes_of_size(
    epoch: tuple[ShardPlan, list[CoverageAudit]],
) -> None:
    plan, audits = epoch
    whole = CoverageAudit.union(audits)
    assert whole.complete == (len(plan.dropped()) == 0)
    assert whole.missing().tolist() == sorted(plan.dropped().tolist())
    whole.exclude(plan.dropped())
    assert whole.complete
    assert whole.missing().tolist() == whole.duplicates().tolist() == []
    digest = 0
    for audit in audits:
        digest ^= audit.digest
    assert digest == whole.digest == whole.expected_digest
    assert sum(audit.count for audit in audits) == whole.count == whole.expected_count


@given(segmented_epochs(), st.data())
def test_a_lost_record_is_named_missing_and_a_repeated_one_duplicate(
    epoch: tuple[ShardPlan, list[CoverageAudit]], data: st.DataObject
) -> None:
    plan, audits = epoch
    counts = CoverageAudit.union(audits).to_array()
    chosen = data.draw(st.sampled_from(np.flatnonzero(counts).tolist()))
    for change, (missing, duplicates) in ((-1, ([chosen], [])), (1, ([], [chosen]))):
        counts[chosen] += change
        audit = CoverageAudit.from_array(counts)
        counts[chosen] -= change
        audit.exclude(plan.dropped())
        assert audit.missing().tolist() == missing
        assert audit.duplicates().tolist() == duplicates
        assert not audit.complete
        assert (audit.count, audit.digest) != (audit.expected_count, audit.expected_digest)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1_048_576, 1_048_577])
def test_large_batches_equal_small_ones(n: int) -> None:
    ids = np.random.default_rng(n).permutation(n)
    ids = ids[: max(1, n * 9 // 10)]
    at_once, in_parts = CoverageAudit(n), CoverageAudit(n)
    at_once.add(ids, ones(ids))
    for part in np.array_split(ids, 20):
        in_parts.add(part, ones(part))
    assert at_once == in_parts
    assert np.array_equal(np.sort(np.concatenate([ids, at_once.missing()])), np.arange(n))
    assert (at_once.duplicates().size, at_once.count) == (0, len(ids))
    at_once.add(ids, ones(ids))
    assert np.array_equal(at_once.duplicates(), np.sort(ids))
    assert (at_once.digest, at_once.count) == (0, 2 * len(ids))


def test_one_bit_a_record_and_little_for_few() -> None:
    n = 1_000_000
    ids = np.random.default_rng(0).permutation(n)
    half, few = CoverageAudit(n), CoverageAudit(n)
    half.add(ids[: n // 2], ones(ids[: n // 2]))
    few.add(ids[:100], ones(ids[:100]))
    assert len(half.to_bytes()) < n / 8 + 200
    assert len(few.to_bytes()) < 100 * 4 + 100


@given(reads, exclusions, st.sampled_from([N, 300, 70_000]))
def test_bytes_bring_the_same_audit_back(batches: list[list[tuple[int, float]]], excluded: list[int], n: int) -> None:
    audit = audit_of(batches, excluded, n)
    back = CoverageAudit.from_bytes(audit.to_bytes())
    assert back == audit
    assert np.array_equal(back.to_array(), audit.to_array())
    assert (back.count, back.digest, back.excluded.tolist()) == (audit.count, audit.digest, audit.excluded.tolist())
    back.add(np.array([3]), np.ones(1, np.float32))
    assert back != audit


@given(st.lists(st.tuples(reads, exclusions), max_size=5), st.sampled_from([N, 300, 70_000]))
def test_a_union_of_bytes_is_the_union(ranks: list[tuple[list[list[tuple[int, float]]], list[int]]], n: int) -> None:
    parts = [audit_of(batches, excluded, n) for batches, excluded in ranks]
    at_once = CoverageAudit.union_of_bytes([part.to_bytes() for part in parts], n)
    assert at_once == CoverageAudit.union([CoverageAudit(n), *parts])
    assert (at_once.count, at_once.complete) == (sum(part.count for part in parts), at_once.complete)
    with pytest.raises(CatalogError, match="not of"):
        CoverageAudit.union_of_bytes([CoverageAudit(n + 1).to_bytes()], n)


@given(st.lists(reads, min_size=1, max_size=5), st.sampled_from([N, 65, 300]))
def test_sums_of_words_are_the_union_unless_a_record_was_read_twice(
    ranks: list[list[list[tuple[int, float]]]], n: int
) -> None:
    parts = [audit_of(batches, n=n) for batches in ranks]
    words, count = np.sum([part.words() for part in parts], axis=0), sum(part.count for part in parts)
    union = CoverageAudit.union(parts)
    of_sums = CoverageAudit.from_sums(words, count, n)
    assert (of_sums is None) == bool(len(union.duplicates()))
    assert of_sums is None or of_sums == union


@pytest.mark.parametrize("ranks", [2, 3, 64, 256, 1000])
@pytest.mark.parametrize("record", [0, 7, 63])
def test_a_record_that_many_ranks_read_is_noticed_whatever_it_adds_up_to(ranks: int, record: int) -> None:
    audit = audit_of([[(record, 1.0)]], n=64)
    assert CoverageAudit.from_sums(audit.words() * ranks, ranks, 64) is None


@given(reads, exclusions, st.data())
def test_any_flipped_bit_and_any_cut_is_noticed(
    batches: list[list[tuple[int, float]]], excluded: list[int], data: st.DataObject
) -> None:
    whole = audit_of(batches, excluded).to_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (bytes(flipped), cut, whole + b"\0"):
        with pytest.raises(CatalogError, match="not a whole coverage audit"):
            CoverageAudit.from_bytes(damaged)


def test_bytes_of_saved_audits_stay_readable() -> None:
    # Written down once: audits of a run's earlier parts are kept in files.
    saved = (
        "6473636f766572012c010000000000000200000000000000010000000000000001000000000000000078016366e060606660"
        "65000000660014b87f3f26b2d166694d16c4954c292df2"
    )
    audit = CoverageAudit.from_bytes(bytes.fromhex(saved))
    assert audit == audit_of([[(3, 1.0), (11, 1.0)], [(3, 1.0)]], [5], 300)
    assert audit.digest == 0xC2D326E0055BDEF6


def test_an_excluded_record_that_is_read_all_the_same_is_no_fault() -> None:
    audit = audit_of([[(identity, 1.0) for identity in range(N)]], [5])
    assert audit.complete
    audit.add(np.array([5]), np.ones(1, np.float32))
    assert audit.duplicates().tolist() == [5]
    assert not audit.complete


def test_the_array_is_a_copy() -> None:
    audit = CoverageAudit(N)
    audit.to_array()[:] = 1
    assert audit.missing().size == N


def test_wrong_input_is_refused() -> None:
    audit = CoverageAudit(N)
    one = np.ones(1, np.float32)
    for outside in (-1, N):
        with pytest.raises(PlanError, match="covers 0 to 11"):
            audit.add(np.array([outside]), one)
        with pytest.raises(PlanError, match="covers 0 to 11"):
            audit.exclude(np.array([outside]))
    with pytest.raises(PlanError, match="own weight"):
        audit.add(np.array([1, 2]), one)
    with pytest.raises(PlanError, match="different data"):
        audit.merge(CoverageAudit(N + 1))
    with pytest.raises(PlanError, match="nothing to audit"):
        CoverageAudit(0)
    with pytest.raises(PlanError, match="No audits"):
        CoverageAudit.union([])
    assert audit.missing().size == N
    assert audit.expected_count == N
