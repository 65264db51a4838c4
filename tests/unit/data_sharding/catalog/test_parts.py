"""Parts of a catalog are sets of its records: nothing is lost, nothing is in two parts, and the seed decides alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import BadRecord, Catalog, CoverageAudit, PlanError, RecordReader, ShardPlan, write_shards

COUNTS = st.integers(2, 60)
SEEDS = st.integers(0, 2**40)
FRACTIONS = st.floats(0.02, 0.98)


def numbers(count: int, labels: Any = None) -> Catalog:
    """Records 0, 1, 2, …, each of which is its own number."""
    return Catalog.of(np.arange(count).tolist(), labels=labels, version="1")


def ids_of(catalog: Catalog) -> list[int]:
    return catalog.offsets.tolist()


@given(COUNTS, FRACTIONS, SEEDS)
def test_a_split_is_a_partition_of_the_asked_size(count: int, fraction: float, seed: int) -> None:
    expected = int(np.floor(count * fraction + 1e-9))
    if expected in (0, count):
        with pytest.raises(PlanError, match="one part empty"):
            numbers(count).split(fraction, seed=seed)
        return
    first, rest = numbers(count).split(fraction, seed=seed)
    assert len(first) == expected
    assert sorted(ids_of(first) + ids_of(rest)) == list(range(count))
    assert ids_of(first) == sorted(ids_of(first))
    again, _ = numbers(count).split(fraction, seed=seed)
    assert again.fingerprint == first.fingerprint


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), FRACTIONS, SEEDS)
def test_a_stratified_split_takes_the_fraction_of_each_label(labels: list[int], fraction: float, seed: int) -> None:
    catalog = numbers(len(labels), labels)
    try:
        first, rest = catalog.split(fraction, seed=seed, stratify=True)
    except PlanError:
        assert not 1 <= fraction * len(labels) + 1e-9 < len(labels)
        return
    assert sorted(ids_of(first) + ids_of(rest)) == list(range(len(labels)))
    assert first.labels is not None
    for label in set(labels):
        assert abs(int((first.labels == label).sum()) - fraction * labels.count(label)) <= 1 + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_few_groups_leave_one_to_the_rest(seed: int) -> None:
    first, rest = numbers(30).split(0.9, seed=seed, groups=np.arange(30) % 3)
    assert (len(first), len(rest)) == (20, 10)


@given(st.lists(st.integers(0, 5), min_size=3, max_size=60), st.integers(2, 4), SEEDS)
def test_groups_stay_together_in_splits_and_folds(groups: list[int], count: int, seed: int) -> None:
    catalog = numbers(len(groups))
    parts = []
    if len(set(groups)) >= max(count, 2) and len(groups) >= count:
        parts = [catalog.folds(count, fold, seed=seed, groups=groups) for fold in range(count)]
        assert sorted(record for _, inside in parts for record in ids_of(inside)) == list(range(len(groups)))
    if len(set(groups)) > 1 and max(groups.count(group) for group in groups) <= len(groups) / 2:
        parts.append(catalog.split(0.5, seed=seed, groups=np.array(groups).astype(str)))
    for one, other in parts:
        assert not {groups[record] for record in ids_of(one)} & {groups[record] for record in ids_of(other)}


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=8, max_size=60), st.integers(2, 4), SEEDS)
def test_stratified_groups_stay_together(records: list[tuple[int, int]], count: int, seed: int) -> None:
    groups, labels = (list(column) for column in zip(*records, strict=True))
    catalog, parts = numbers(len(records), labels), []
    if len(set(groups)) >= count:
        parts = [catalog.folds(count, fold, seed=seed, groups=groups, stratify=True) for fold in range(count)]
        assert sorted(record for _, inside in parts for record in ids_of(inside)) == list(range(len(groups)))
    if len(set(groups)) > 1:
        parts.append(catalog.split(0.7, seed=seed, groups=groups, stratify=True))
    for one, other in parts:
        assert not {groups[record] for record in ids_of(one)} & {groups[record] for record in ids_of(other)}


@pytest.mark.parametrize("seed", range(5))
def test_stratified_groups_have_the_fraction_of_each_label(seed: int) -> None:
    """A rare label, too, whose records are in few groups."""
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(120), random.integers(1, 6, 120))
    labels = np.where(random.random(120) < 0.1, 1, 0)[groups]
    catalog = numbers(len(groups), labels)
    first, _ = catalog.split(0.8, seed=seed, groups=groups, stratify=True)
    folds = [catalog.folds(4, fold, seed=seed, groups=groups, stratify=True)[1] for fold in range(4)]
    for part, share in [(first, 0.8), *((fold, 0.25) for fold in folds)]:
        assert part.labels is not None
        for label in (0, 1):
            assert abs((part.labels == label).sum() - share * (labels == label).sum()) <= 5


@given(COUNTS, st.integers(2, 7), SEEDS, st.booleans())
def test_folds_validate_each_record_once(count: int, folds: int, seed: int, stratify: bool) -> None:
    if folds > count:
        return
    catalog = numbers(count, np.arange(count) % 3)
    parts = [catalog.folds(folds, fold, seed=seed, stratify=stratify) for fold in range(folds)]
    assert sorted(record for _, inside in parts for record in ids_of(inside)) == list(range(count))
    for training, inside in parts:
        assert sorted(ids_of(training) + ids_of(inside)) == list(range(count))
        assert len(inside) in (count // folds, -(-count // folds))


def test_a_part_of_files_reads_its_records_and_is_audited(tmp_path: Path) -> None:
    write_shards(tmp_path, "n", (str(n).encode() for n in range(40)), 4)
    whole = Catalog.index(tmp_path)
    with RecordReader(whole) as reader:
        *expected, other = reader.read(np.array([39, 3, 3, 17]))
    part = whole.take([39, 3, 3, 17]).where(fn=lambda records: np.array([record != other for record in records]))
    with RecordReader(part) as reader:
        assert reader.read(np.arange(3)) == expected
    part.save(tmp_path / "part.npz")
    assert Catalog.load(tmp_path / "part.npz").fingerprint == part.fingerprint
    plan = ShardPlan.for_catalog(part, global_batch=2, seed=1, epoch=0)
    audit = CoverageAudit(len(part))
    for step in range(plan.steps):
        batch = plan.shard(0, 1, step)
        audit.add(batch.ids, batch.weights)
    assert audit.complete


def test_labels_choose_records() -> None:
    catalog = numbers(9, np.arange(9) % 3)
    assert ids_of(catalog.where(labels=[0, 2])) == [0, 2, 3, 5, 6, 8]
    assert ids_of(catalog.where(labels=1, fn=lambda records: np.array(list(records)) > 1)) == [4, 7]


class _Refusing(list[int]):
    def __getitem__(self, number: Any) -> Any:
        if number == 2:
            raise BadRecord("it is the third")
        return super().__getitem__(number)


def test_damaged_records_are_kept_by_a_function_that_cannot_see_them() -> None:
    kept = Catalog.of(_Refusing([1, 2, 3, 4]), version="1").where(fn=lambda records: np.array(records.payloads) == 4)
    assert kept.offsets.tolist() == [2, 3]


def test_what_was_joined_or_lost_is_saved(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(6).reshape(3, 2))
    joined = Catalog.concat(*(Catalog.index(tmp_path / f"{name}.npy") for name in "ab"))
    part = joined.take([0, 4])
    for catalog in (joined, part):
        catalog.save(tmp_path / "saved.npz")
        loaded = Catalog.load(tmp_path / "saved.npz")
        assert loaded.lost_bytes == catalog.lost_bytes == 0
        ids = np.arange(len(catalog))
        assert loaded.sources(ids).tolist() == catalog.sources(ids).tolist()  # type: ignore[union-attr]


def test_catalogs_with_labels_and_without_are_joined() -> None:
    without, given = numbers(3), numbers(3, np.array([5, 6, 7]))
    joined = Catalog.concat(without.with_labels([2, 1, 0]), given)
    assert joined.labels is not None
    assert joined.labels.tolist() == [2, 1, 0, 5, 6, 7]
    other = Catalog.concat(without, given.with_labels(None))
    assert other.labels is None
    assert other.fingerprint != joined.fingerprint


def test_joined_catalogs_have_all_records(tmp_path: Path) -> None:
    for name in "ab":
        write_shards(tmp_path / name, "n", (f"{name}{n}".encode() for n in range(3)), 2)
    parts = [Catalog.index(tmp_path / name) for name in "ab"]
    with RecordReader(Catalog.concat(*parts)) as reader:
        assert sorted(reader.read(np.arange(6))) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    one = numbers(4)
    assert ids_of(Catalog.concat(one.take([3]), one.take([0, 1]))) == [3, 0, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda c: c.take([4]), "ids from 4 to 4"),
        (lambda c: c.take([]), "shape"),
        (lambda c: c.take([0.5]), "float64"),
        (lambda c: c.where(labels=1), "has no labels"),
        (lambda c: c.where(fn=lambda _: [False] * 4), "None of 4 records"),
        (lambda c: c.where(fn=lambda _: [1] * 4), "returned int64"),
        (lambda c: c.split(1.0), "one part empty"),
        (lambda c: c.split(0.5, groups=[1, 2]), r"groups of shape \[2\]"),
        (lambda c: c.split(0.5, groups=["a", None] * 2), "cannot be put in an order"),
        (lambda c: c.with_labels([1, 2]), r"The labels are an array of int64 of shape \[2\]"),
        (lambda c: c.with_labels([0.5] * 4), "The labels are an array of float64"),
        (lambda c: c.split(0.5, groups=[1] * 4), "all 4 records are of one group"),
        (lambda c: c.split(0.5, groups=[1, 1, 2, 2], stratify=True), "has no labels"),
        (lambda c: c.with_labels([1] * 4).split(0.5, groups=[1] * 4, stratify=True), "all 4 records are of one group"),
        (lambda c: c.folds(5, 0), r"Fold 0 of 5[^$]*give 2 to 4 folds"),
        (lambda c: c.folds(2, 2), "Fold 2 of 2"),
        (lambda _: Catalog.concat(), "nothing to join"),
        (lambda c: Catalog.concat(c, numbers(3, [0, 1, 2])), "have labels, and others have none"),
    ],
)
def test_a_part_that_cannot_be_is_refused(make: Callable[[Catalog], object], words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        make(numbers(4))
    assert "HINT: " in str(caught.value)


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_is_too_large_does_not_spoil_a_split(seed: int, stratify: bool) -> None:
    """Where smaller ones reach the fraction; else a part has the smallest one."""
    large = np.concatenate([np.zeros(300, int), np.repeat(np.arange(1, 141), 5)])
    first = numbers(1000, large % 3).split(0.1, seed=seed, groups=large, stratify=stratify)[0]
    assert abs(len(first) - 100) <= (10 if stratify else 0)
    labels = np.where(np.arange(1000) % 10 == 0, 1, 0)
    first = numbers(1000, labels).split(0.1, seed=seed, groups=large, stratify=True)[0]
    assert first.labels is not None
    assert 5 <= (first.labels == 1).sum() <= 15, "of each label its tenth"
    two = np.repeat([0, 1], [900, 100])
    assert len(numbers(1000, two).split(0.05, seed=seed, groups=two, stratify=stratify)[0]) == 100
