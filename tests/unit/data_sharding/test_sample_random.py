"""Draws belong to (seed, epoch, record, name), and behave as random numbers should."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding import SampleRandom

ID = st.integers(0, 2**62)
SEED = st.integers(-(2**70), 2**70)
NAME = st.text(max_size=8)
SHAPE = st.lists(st.integers(0, 3), max_size=3).map(tuple)

Draw = Callable[[SampleRandom, str, Any], np.ndarray]
DRAWS: dict[str, Draw] = {
    "uniform": lambda random, name, shape: random.uniform(name, -2.0, 5.0, shape),
    "integers": lambda random, name, shape: random.integers(name, -3, 2**40, shape),
    "normal": lambda random, name, shape: random.normal(name, shape),
    "coin": lambda random, name, _: random.coin(name, 0.3),
    "generators": lambda random, name, _: np.array([each.random(3) for each in random.generators(name)]).reshape(-1, 3),
}
MANY = np.arange(100_000)


@given(st.lists(ID, max_size=6), SEED, st.integers(0, 2**40), NAME, SHAPE, st.sampled_from(sorted(DRAWS)), st.data())
def test_a_records_draws_do_not_depend_on_the_rest_of_the_batch(
    ids: list[int], seed: int, epoch: int, name: str, shape: tuple[int, ...], kind: str, data: st.DataObject
) -> None:
    whole = DRAWS[kind](SampleRandom(seed, epoch, np.array(ids, np.int64)), name, shape)
    assert len(whole) == len(ids)
    if kind in ("uniform", "integers", "normal"):
        assert whole.shape == (len(ids), *shape)
    chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=6)) if ids else []
    part = SampleRandom(seed, epoch, np.array([ids[index] for index in chosen], np.int64))
    part.uniform("another draw before")
    assert np.array_equal(DRAWS[kind](part, name, shape), whole[chosen])


@given(st.lists(ID, min_size=2, max_size=2, unique=True), SEED, SEED, st.integers(0, 99), NAME, NAME)
def test_other_ids_names_seeds_and_epochs_give_other_draws(
    ids: list[int], seed: int, other_seed: int, epoch: int, name: str, other_name: str
) -> None:
    def draw(seed: int, epoch: int, name: str) -> list[float]:
        return SampleRandom(seed, epoch, np.array(ids)).uniform(name).tolist()

    base = draw(seed, epoch, name)
    assert base[0] != base[1]
    others = [draw(seed, epoch + 1, name), draw(seed, epoch, name + "x")]
    others += [draw(other_seed, epoch, name)] if other_seed != seed else []
    others += [draw(seed, epoch, other_name)] if other_name != name else []
    for numbers in others:
        assert not set(numbers) & set(base)


def test_seed_epoch_and_name_do_not_run_together() -> None:
    ids = np.arange(4)
    draws = [SampleRandom(1, 23, ids).uniform("4"), SampleRandom(12, 3, ids).uniform("4")]
    draws += [SampleRandom(1, 2, ids).uniform("3 4"), SampleRandom(1, 2, ids).uniform("34")]
    assert len({number for draw in draws for number in draw.tolist()}) == 16


def test_draws_of_other_records() -> None:
    ids = np.array([5, 3, 5])
    one, other = SampleRandom(2, 7, np.array([1])).of_records(ids), SampleRandom(2, 7, ids)
    np.testing.assert_array_equal(one.uniform("x"), other.uniform("x"))


def test_world_size_and_resume_change_no_draw(catalog: ds.Catalog) -> None:
    def drawn(size: int, start: int) -> dict[int, list[float]]:
        found = {}
        for rank in range(size):
            for step in range(start, plan.steps):
                ids, weights = plan.shard(rank, size, step)
                numbers = SampleRandom(plan.seed, plan.epoch, ids).normal("x", (3,))
                found |= {int(i): row.tolist() for i, row, real in zip(ids, numbers, weights, strict=True) if real}
        return found

    plan = ds.ShardPlan.for_catalog(catalog, global_batch=8, seed=3, epoch=2)
    alone = drawn(1, 0)
    assert len(alone) == len(catalog)
    for size, start in itertools.product((2, 3, 8), (0, 5)):
        assert drawn(size, start).items() <= alone.items()


def test_golden_numbers_stay_as_they_are() -> None:
    """Others would augment a resumed run in another way than the run that was saved."""
    random = SampleRandom(7, 3, np.array([0, 1, 2**40]))
    assert random.integers("crop", 0, 1000).tolist() == [420, 576, 415]
    assert random.normal("x").tolist() == pytest.approx(
        [-0.6687856613864803, 0.5947270520079001, 0.49494285668033217], rel=1e-12
    )
    assert random.uniform("x").tolist() == [0.4554079516923576, 0.9401340311153651, 0.12745341172676217]


def test_it_travels_to_other_processes() -> None:
    random = SampleRandom(7, 3, np.array([5, 9]))
    assert pickle.loads(pickle.dumps(random)).uniform("x").tolist() == random.uniform("x").tolist()


def test_uniform_has_the_moments_of_its_distribution() -> None:
    values = SampleRandom(1, 0, MANY).uniform("x", -1.0, 3.0)
    assert_mean(values, 1.0, variance=16 / 12)
    assert_mean((values - 1.0) ** 2, 16 / 12, variance=4.0**4 / 80 - (16 / 12) ** 2)
    assert values.min() >= -1.0
    assert values.max() < 3.0


def test_normal_has_the_moments_of_its_distribution() -> None:
    values = SampleRandom(1, 0, MANY).normal("x")
    for power, (expected, variance) in enumerate(((0, 1), (1, 2), (0, 15), (3, 96)), start=1):
        assert_mean(values**power, expected, variance)


def test_coin_falls_as_often_as_asked() -> None:
    for probability in (0.0, 0.1, 0.5, 1.0):
        falls = SampleRandom(1, 0, MANY).coin("x", probability)
        assert_mean(falls.astype(float), probability, probability * (1 - probability))


@pytest.mark.parametrize("count", [2, 3, 9, 10, 256])
def test_integers_are_even(count: int) -> None:
    values = SampleRandom(1, 0, MANY).integers("x", -1, count - 1)
    assert_even(np.bincount(values + 1, minlength=count))


def test_places_of_one_draw_and_pairs_of_neighbours_are_even() -> None:
    cells = SampleRandom(1, 0, np.arange(1000)).integers("x", 0, 8, (100,))
    assert_even(np.bincount(cells.ravel(), minlength=8))
    assert_even(np.bincount((cells[:, :-1] * 8 + cells[:, 1:]).ravel(), minlength=64))
    assert_even(np.bincount((cells[:-1] * 8 + cells[1:]).ravel(), minlength=64))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("distance", [1, 2, 3, 64, 1024])
def test_neighbouring_ids_places_seeds_epochs_and_names_are_uncorrelated(kind: str, distance: int) -> None:
    draw = DRAWS[kind]
    by_id = draw(SampleRandom(1, 0, MANY), "x", ())
    assert_uncorrelated(by_id[:-distance], by_id[distance:])
    by_place = draw(SampleRandom(1, 0, np.arange(50)), "x", (2048,))
    assert_uncorrelated(by_place[:, :-distance].ravel(), by_place[:, distance:].ravel())
    assert_uncorrelated(by_id, draw(SampleRandom(1, distance, MANY), "x", ()))
    assert_uncorrelated(by_id, draw(SampleRandom(1 + distance, 0, MANY), "x", ()))
    assert_uncorrelated(by_id, draw(SampleRandom(1, 0, MANY), f"x{distance}", ()))


def test_diagonals_of_ids_and_places_do_not_repeat() -> None:
    cells = SampleRandom(1, 0, np.arange(500)).uniform("x", shape=(200,))
    assert len(np.unique(cells)) == cells.size


def test_a_normal_is_made_of_no_other_draw() -> None:
    random = SampleRandom(1, 0, np.arange(1000))
    sizes = np.abs(random.normal("x"))
    for name in ("x radius", "x angle", "x 0", "x 1"):
        assert_uncorrelated(sizes, random.uniform(name))


def test_generators_are_one_for_each_record() -> None:
    first, again, other = SampleRandom(1, 0, np.array([4, 4, 5])).generators("x")
    assert first.random(5).tolist() == again.random(5).tolist() != other.random(5).tolist()


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_uniform_stays_in_its_range(low: float, high: float) -> None:
    low, high = sorted((low, high))
    values = SampleRandom(1, 0, np.arange(64)).uniform("x", low, high)
    assert (values >= low).all()
    assert (values < high).all() or low == high


def test_uniform_never_rounds_up_to_its_end() -> None:
    low = 2.0**53
    values = SampleRandom(1, 0, np.arange(1000)).uniform("x", low, low + 2)
    assert set(values.tolist()) == {low}


@given(st.integers(-(2**62), 2**62), st.integers(1, 2**53))
def test_integers_stay_in_their_range(low: int, width: int) -> None:
    values = SampleRandom(1, 0, np.arange(64)).integers("x", low, low + width)
    assert all(low <= value < low + width for value in values.tolist())


@pytest.mark.parametrize(
    "call",
    [
        lambda random: random.integers("x", 3, 3),
        lambda random: random.integers("x", 3, 2),
        lambda random: random.integers("x", 0, 2**53 + 1),
        lambda random: random.uniform("x", 2.0, 1.0),
        lambda random: random.uniform("x", 0.0, math.inf),
        lambda random: random.uniform("x", math.nan, 1.0),
        lambda random: random.coin("x", 1.5),
        lambda random: random.coin("x", -0.5),
    ],
)
def test_impossible_ranges_are_refused(call: Callable[[SampleRandom], Any]) -> None:
    with pytest.raises(ds.PlanError, match="'x'"):
        call(SampleRandom(1, 0, np.arange(3)))


def test_seeds_that_are_no_integers_are_refused() -> None:
    with pytest.raises(ds.PlanError, match="whole number"):
        SampleRandom(1.0, 0, np.arange(3))  # type: ignore[arg-type]
    same = SampleRandom(np.int64(5), np.uint8(2), np.arange(3)).uniform("x")  # type: ignore[arg-type]
    assert np.array_equal(same, SampleRandom(5, 2, np.arange(3)).uniform("x"))


def assert_mean(values: np.ndarray, expected: float, variance: float) -> None:
    """Within 5 standard errors, which chance exceeds once in 1.7 million times."""
    assert abs(values.mean() - expected) <= 5 * math.sqrt(variance / values.size)


def assert_uncorrelated(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The coefficient of n independent pairs has a standard error of 1/sqrt(n)."""
    assert abs(np.corrcoef(ours, theirs)[0, 1]) <= 5 / math.sqrt(ours.size)


def assert_even(counts: np.ndarray) -> None:
    """Chi-square of counts that should be equal: has mean df and variance 2 df, and lies within 6 deviations of it."""
    expected = counts.sum() / len(counts)
    degrees = len(counts) - 1
    chi_square = float((((counts - expected) ** 2) / expected).sum())
    assert abs(chi_square - degrees) <= 6 * math.sqrt(2 * degrees)
