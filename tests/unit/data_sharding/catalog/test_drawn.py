"""Mixtures, repetitions and samples draw each record as often as they say, with any plan and number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_sharding import Catalog, PlanError, ShardPlan
from data_sharding.draws.draw_rule import planned_counts
from data_sharding.draws.weighted import Weighted
from data_sharding.plan.step_slots import SlotPlanner

SIZES = st.lists(st.integers(1, 700), min_size=1, max_size=4)
SHARES = st.floats(0.05, 1)
SEEDS = st.integers(0, 2**40)


def numbers(count: int) -> Catalog:
    return Catalog.of(np.arange(count).tolist(), labels=np.arange(count) % 3, version="1")


def sources(sizes: list[int]) -> list[Catalog]:
    """Catalogs of so many records each."""
    every, ends = numbers(sum(sizes)), np.cumsum(sizes)
    return [every.take(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def counts_of(catalog: Catalog, epoch: int) -> NDArray[np.int64]:
    assert catalog.draws is not None
    return planned_counts(catalog.draws, len(catalog), epoch)


def used(catalog: Catalog, global_batch: int, size: int, epoch: int, shuffle: str = "global") -> NDArray[np.int64]:
    """How often W ranks together use each record in an epoch of a plan."""
    plan = ShardPlan.for_catalog(catalog, global_batch=global_batch, seed=5, epoch=epoch, shuffle=shuffle)  # type: ignore[arg-type]
    counts = np.zeros(len(catalog), np.int64)
    for rank in range(size):
        for step in range(plan.steps):
            ids, weights = plan.shard(rank, size, step)
            np.add.at(counts, ids[weights > 0], 1)
    return counts


@given(SIZES, st.data(), SEEDS, st.integers(1, 900), st.integers(1, 4))
def test_a_mixture_goes_through_all_of_a_source_before_it_repeats_a_record(
    sizes: list[int], data: st.DataObject, seed: int, length: int, epochs: int
) -> None:
    shares = data.draw(st.lists(SHARES, min_size=len(sizes), max_size=len(sizes)))
    mixed = Catalog.mix(dict(zip(sources(sizes), shares, strict=True)), epoch=length, seed=seed)
    total = np.zeros(sum(sizes), np.int64)
    for epoch in range(epochs):
        counts = counts_of(mixed, epoch)
        total += counts
        for size, end, share in zip(sizes, np.cumsum(sizes), shares, strict=True):
            source = slice(end - size, end)
            drawn = int(counts[source].sum())
            assert abs(drawn - length * share / sum(shares)) < 1 + 1e-6
            assert total[source].max() - total[source].min() <= 1  # as often as each other, to one
        assert counts.sum() == length


@given(SIZES, st.data())
def test_an_epoch_ends_when_the_first_or_the_last_source_is_seen(sizes: list[int], data: st.DataObject) -> None:
    shares = data.draw(st.lists(SHARES, min_size=len(sizes), max_size=len(sizes)))
    parts = dict(zip(sources(sizes), shares, strict=True))
    first, last = Catalog.mix(parts), Catalog.mix(parts, epoch="all seen")
    assert counts_of(first, 0).max() <= 1 or len(first.draws.counts) == first.epoch_length  # type: ignore[union-attr]
    ends = np.cumsum(sizes)
    most = max(counts_of(first, 0)[end - size : end].sum() / size for size, end in zip(sizes, ends, strict=True))
    assert most > 1 - (1 + 1e-6) / min(sizes)  # rounding leaves less than a record of one source out
    seen = [counts_of(last, 0)[end - size : end].sum() / size for size, end in zip(sizes, ends, strict=True)]
    assert min(seen) > 1 - (1 + 1e-6) / min(sizes)


@given(
    st.lists(st.floats(0, 4) | st.integers(0, 3), min_size=1, max_size=60).filter(lambda some: sum(some) >= 1),
    SEEDS,
    st.integers(0, 5),
)
def test_a_weight_is_how_often_a_record_is_drawn(weights: list[float], seed: int, epoch: int) -> None:
    drawn = numbers(len(weights)).repeat(weights=weights, seed=seed)
    counts, length = counts_of(drawn, epoch), drawn.epoch_length
    expected = np.array(weights) * length / sum(weights)
    assert length == round(sum(weights))
    assert counts.sum() == length
    assert (counts >= np.floor(expected - 1e-4)).all()
    assert (counts <= np.ceil(expected + 1e-4)).all()
    assert not counts[np.array(weights) == 0].any()


def test_fractions_of_weights_are_made_up_for_in_other_epochs() -> None:
    drawn = numbers(40).repeat(weights=np.full(40, 0.5))
    total = sum(counts_of(drawn, epoch) for epoch in range(20))
    assert total.min() >= 8
    assert total.max() <= 12


def test_a_sample_draws_with_replacement_in_proportion_to_weights() -> None:
    weights = np.array([0, 1, 2, 5])
    drawn = numbers(4).sample(8000, weights=weights, seed=3)
    first, second = counts_of(drawn, 0), counts_of(drawn, 1)
    assert np.abs(first - [0, 1000, 2000, 5000]).max() < 200  # 4.5 standard deviations
    assert first.sum() == 8000
    assert (first != second).any()


@pytest.mark.parametrize(("records", "draws"), [(10_000_000, 6), (10_000_000, 20), (3_000_000, 1)])
def test_few_draws_of_many_records_come_from_all_parts_of_them(records: int, draws: int) -> None:
    rule = Weighted.by(np.ones(records), records, draws, 7, replacement=True)
    drawn = np.concatenate([rule.records(np.arange(draws), epoch) for epoch in range(2000)])
    tenths = np.bincount(drawn * 10 // records, minlength=10) / len(drawn)
    assert np.abs(tenths - 0.1).max() < 5 * np.sqrt(0.09 / len(drawn))


def test_weights_near_to_nothing_are_shares_all_the_same() -> None:
    assert counts_of(numbers(10).repeat(weights=[1e-307] * 10, epoch=10), 0).tolist() == [1] * 10


@given(
    st.sampled_from(["mix", "repeat", "weights", "sample", "together"]),
    st.integers(3, 60),
    st.integers(5, 40),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from(["global", "block", "none"]),
)
def test_plans_use_records_exactly_as_often_as_planned(
    rule: str, count: int, batch: int, size: int, epoch: int, shuffle: str
) -> None:
    first, second = sources([count, count // 2 + 1])
    drawn = {
        "mix": lambda: Catalog.mix({first: 0.7, second: 0.3}),
        "repeat": lambda: first.repeat(3),
        "weights": lambda: first.repeat(weights=np.linspace(0.1, 2, count)),
        "sample": lambda: first.sample(2 * count),
        "together": lambda: first.repeat(2, in_one_batch=True),
    }[rule]()
    if rule == "together" and (batch % 2 or shuffle == "block"):
        with pytest.raises(PlanError, match="in one batch"):
            used(drawn, batch, 1, epoch, shuffle)
        return
    planned = counts_of(drawn, epoch)
    assert used(drawn, batch, 1, epoch, shuffle).tolist() == planned.tolist()
    assert used(drawn, batch, size, epoch, shuffle).tolist() == planned.tolist()


def test_copies_of_a_record_come_in_one_batch_with_draws_of_their_own() -> None:
    drawn = numbers(50).repeat(4, in_one_batch=True)
    plan = ShardPlan.for_catalog(drawn, global_batch=20, seed=1, epoch=2)
    seen = []
    for step in range(plan.steps):
        slots = SlotPlanner(plan, 0, 1, augment=True)(step)
        ids, copies = np.unique(slots.ids, return_counts=True)
        assert copies.tolist() == [4] * 5
        seen += ids.tolist()
        assert slots.random is not None
        assert len(np.unique(slots.random.uniform("crop"))) == 20
    assert sorted(seen) == list(range(50))


def test_ranks_have_the_same_draws_as_one(tmp_path: Path) -> None:
    catalog = numbers(40).repeat(3)
    plan = ShardPlan.for_catalog(catalog, global_batch=12, seed=1, epoch=0)
    one = SlotPlanner(plan, 0, 1, augment=True)(2)
    several = [SlotPlanner(plan, rank, 3, augment=True)(2) for rank in range(3)]
    assert one.random is not None
    assert np.concatenate([part.ids for part in several]).tolist() == one.ids.tolist()
    draws = [part.random.uniform("a") for part in several if part.random is not None]
    assert np.concatenate(draws).tolist() == one.random.uniform("a").tolist()
    catalog.save(tmp_path / "saved.npz")
    assert Catalog.load(tmp_path / "saved.npz").fingerprint == catalog.fingerprint


def test_each_rule_survives_saving(tmp_path: Path) -> None:
    first, second = sources([30, 10])
    for drawn in (
        Catalog.mix({first: 1, second: 2}, epoch=50),
        first.repeat(weights=np.arange(30)),
        first.sample(9),
        first.repeat(2, in_one_batch=True),
    ):
        drawn.save(tmp_path / "saved.npz")
        again = Catalog.load(tmp_path / "saved.npz")
        assert again.fingerprint == drawn.fingerprint
        assert counts_of(again, 3).tolist() == counts_of(drawn, 3).tolist()
        assert drawn.fingerprint not in {first.fingerprint, Catalog.concat(first, second).fingerprint}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a, b: Catalog.mix({a: np.float32(0), b: 0}), "without a record"),
        (lambda a, b: Catalog.mix({a: -1, b: 2}), "share of 0 or more"),
        (lambda a, b: Catalog.mix({a: 1, b: 1}, epoch="forever"), "forever"),
        (lambda a, b: Catalog.mix({a: 1, b: 1}, epoch=0), "at least one record"),
        (lambda a, b: Catalog.mix({a: 1e-18, b: 1}, epoch="all seen"), r"An epoch of 5e\+18 records .*\n.*epoch=N"),
        (lambda a, b: Catalog.mix({a: 1e-19, b: 1}, epoch="all seen"), "An epoch of 5e"),
        (lambda a, b: Catalog.mix({a: 1e-320, b: 1}, epoch="all seen"), "An epoch of inf"),
        (lambda a, b: Catalog.mix({a: 1, b: 1}, epoch=10**30), "An epoch of 1e"),
        (lambda a, b: Catalog.mix({a: 1, b: 1}, epoch=10**400), "An epoch of inf"),
        (lambda a, _: Catalog.mix({a.repeat(2): 1}), "come last"),
        (lambda a, _: a.repeat(2).split(0.5), "come last"),
        (lambda a, _: a.repeat(), "either|Either"),
        (lambda a, _: a.repeat(0), "once at least"),
        (lambda a, _: a.repeat(weights=[1, 2]), "one number as its weight"),
        (lambda a, _: a.repeat(weights=np.zeros(5)), "without a record"),
        (lambda a, _: a.repeat(weights=np.full(5, np.nan)), "more than 0"),
        (lambda a, _: a.repeat(weights=np.full(5, 0.01)), "by weight"),
        (lambda a, _: a.repeat(weights=np.ones(5), in_one_batch=True), "unequal numbers"),
        (lambda a, _: a.sample(0), "at least one record"),
        (lambda a, _: a.sample(10**13), "draws 1 to"),
        (lambda a, _: a.repeat(10**19), "draw fewer"),
        (lambda a, _: a.repeat(weights=np.full(5, 1e12)), "epoch=N"),
        (lambda a, _: a.repeat(weights=np.full(5, 1e308)), "add up to inf"),
        (lambda a, b: Catalog.mix([a, b]), "mix\\(\\) was given list"),  # type: ignore[arg-type]
        (lambda a, _: Catalog.mix({a: "x"}), "mix\\(\\) was given dict"),  # type: ignore[dict-item]
        (lambda a, _: Catalog.concat(a, "x"), "A str was to be joined"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        wrong(*sources([5, 7]))  # type: ignore[operator]
