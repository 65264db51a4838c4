"""The shuffle is a bijection, depends on its key, looks uniform, and never changes between versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sharding import Permutation, PlanError
from data_sharding.permutation import permute_each
from data_sharding.sample_random import mix

sizes = st.integers(1, 3000) | st.integers(1, 12).flatmap(lambda bits: st.integers(2**bits - 1, 2**bits + 1))
seeds = st.integers(-(2**70), 2**70)


@given(sizes, seeds, st.integers(0, 10**6))
def test_bijection_with_inverse(n: int, seed: int, epoch: int) -> None:
    permutation = Permutation(n, seed, epoch)
    image = permutation(np.arange(n))
    assert image.dtype == np.int64
    assert np.array_equal(np.sort(image), np.arange(n))
    assert np.array_equal(permutation.inverse(image), np.arange(n))


@given(st.integers(1, 2**62), seeds, st.data())
def test_any_position_alone_and_back(n: int, seed: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5)))
    permutation = Permutation(n, seed, 0)
    together = permutation(positions)
    assert together.min() >= 0
    assert together.max() < n
    assert [int(permutation(positions[i : i + 1])[0]) for i in range(len(positions))] == together.tolist()
    assert permutation.inverse(together).tolist() == positions.tolist()


@given(st.integers(64, 3000), seeds, st.integers(0, 10**6))
def test_seed_and_epoch_change_the_order(n: int, seed: int, epoch: int) -> None:
    positions = np.arange(n)
    orders = [Permutation(n, *key)(positions).tolist() for key in ((seed, epoch), (seed, epoch + 1), (seed + 1, epoch))]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != positions.tolist()


@pytest.mark.parametrize("n", [10, 100, 1797])
def test_every_element_is_equally_likely_at_every_place(n: int) -> None:
    epochs = 4000
    places = np.array([0, n // 2, n - 1])
    seen = np.stack([Permutation(n, 3, epoch)(places) for epoch in range(epochs)])
    for column in seen.T:
        expected = epochs / n
        chi_square = ((np.bincount(column, minlength=n) - expected) ** 2 / expected).sum()
        # The statistic has mean n-1 and variance 2(n-1); the keys are fixed, so this cannot flake.
        assert abs(chi_square - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def test_neighbours_are_independent() -> None:
    n = 10_000
    image = Permutation(n, 1, 0)(np.arange(n)).astype(float)
    for lag in (1, 2, 64, 128):
        correlation = np.corrcoef(image[:-lag], image[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(n)


def test_orders_of_saved_runs_stay_valid() -> None:
    # Written down once from this implementation: another result would make every saved position point elsewhere.
    assert Permutation(10, 0, 0)(np.arange(10)).tolist() == [1, 7, 0, 8, 4, 2, 9, 6, 3, 5]
    assert Permutation(1_281_167, 42, 3)(np.array([0, 1, 2, 1_281_166])).tolist() == [172057, 384967, 779993, 528266]


@pytest.mark.parametrize("outside", [-1, 5, 2**40])
def test_positions_outside_are_refused(outside: int) -> None:
    for function in (Permutation(5, 0, 0), Permutation(5, 0, 0).inverse):
        with pytest.raises(PlanError, match="covers 0 to 4"):
            function(np.array([0, outside]))


@pytest.mark.parametrize("n", [0, -3, 2**62 + 1])
def test_impossible_sizes_are_refused(n: int) -> None:
    with pytest.raises(PlanError):
        Permutation(n, 0, 0)


def test_no_position_gives_no_element() -> None:
    assert Permutation(5, 0, 0)(np.arange(0)).tolist() == []


keys = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.integers(1, 300), keys), min_size=1, max_size=6))
def test_each_size_and_key_has_its_own_bijection(domains: list[tuple[int, int]]) -> None:
    values = np.concatenate([np.arange(size) for size, _ in domains])
    counts = [size for size, _ in domains]
    sizes = np.repeat(np.array(counts), counts)
    images = permute_each(values, sizes, np.repeat(np.array([key for _, key in domains], np.uint64), counts))
    assert images.dtype == np.int64
    for (size, key), image in zip(domains, np.split(images, np.cumsum(counts)[:-1]), strict=True):
        assert np.array_equal(np.sort(image), np.arange(size))
        alone = permute_each(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
        assert np.array_equal(alone, image)


@given(st.integers(1, 2**53), keys, st.data())
def test_permuting_each_stays_inside_and_apart(size: int, key: int, data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=5)))
    images = permute_each(values, np.full(len(values), size), np.full(len(values), key, np.uint64))
    assert images.min() >= 0
    assert images.max() < size
    assert len(set(images.tolist())) == len(values)


@pytest.mark.parametrize("size", [3, 10, 64])
def test_each_element_is_equally_likely_under_mixed_keys(size: int) -> None:
    count = 6000
    keys = mix(np.arange(1, count + 1, dtype=np.uint64))
    images = {
        place: permute_each(np.full(count, place), np.full(count, size), keys) for place in (0, size // 2, size - 1)
    }
    pairs = images[0] * size + images[size - 1]
    for column, cells in ((images[0], size), (images[size // 2], size), (pairs, size * size)):
        possible = cells if cells == size else size * (size - 1)
        expected = count / possible
        seen = np.bincount(column, minlength=cells)
        chi_square = ((seen[seen > 0] - expected) ** 2 / expected).sum() + (possible - (seen > 0).sum()) * expected
        assert abs(chi_square - (possible - 1)) < 5 * np.sqrt(2 * (possible - 1))


def test_orders_of_each_stay_valid() -> None:
    # As above: the block order of saved runs is made of these.
    ten = permute_each(np.arange(10), np.full(10, 10), np.full(10, 7, np.uint64))
    assert ten.tolist() == [8, 1, 0, 6, 3, 5, 9, 2, 7, 4]
    wide = permute_each(np.array([0, 1, 2**40]), np.full(3, 2**50 + 1), np.array([1, 2, 3], np.uint64))
    assert wide.tolist() == [1102160958434018, 159645602625860, 857977322720905]
