"""PowerSGD's rule, in numpy: what workers bring home together, and what they still owe."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_equal
from numpy.typing import NDArray

from hvdtrain.algorithms import powersgd_rule
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

Array = NDArray[Any]
OPERATIONS = powersgd_rule.Operations(
    transposed=np.transpose,
    orthonormal=lambda matrix: np.linalg.qr(matrix)[0],
    revived=lambda factor, first: np.where((factor == 0).all(axis=0), first, factor),
)
SEEDS = st.integers(0, 2**32 - 1)


class Workers:
    """Each with an error of its own, and the factor that all share; one matrix, in float64."""

    def __init__(self, count: int, rows: int, columns: int, rank: int) -> None:
        self.errors = [np.zeros((rows, columns)) for _ in range(count)]
        self.first = powersgd_rule.first_factor(0, columns, rank).astype(np.float64)
        self.factor = self.first

    def bring(self, gradients: Sequence[Array]) -> Array:
        """One update; what all take for the mean gradient."""
        turns = [
            powersgd_rule.Round([gradient], [error], [self.factor], OPERATIONS)
            for gradient, error in zip(gradients, self.errors, strict=True)
        ]
        sketch = np.mean([turn.first_message()[0] for turn in turns], axis=0)
        right = np.mean([turn.second_message([sketch])[0] for turn in turns], axis=0)
        self.errors = [turn.new_errors()[0] for turn in turns]
        self.factor = turns[0].next_factors([right], [self.first])[0]
        product: Array = turns[0].left[0] @ right.T
        return product


def reference(mean_gradient: Array, mean_error: Array, factor: Array) -> tuple[Array, Array, Array]:
    """Of all workers together, as projections: (what is brought home, mean error, factor) after one update."""
    whole = mean_gradient + mean_error
    left, singular, _ = np.linalg.svd(whole @ factor, full_matrices=False)
    projection = left @ left.T
    return projection @ whole, whole - projection @ whole, whole.T @ left


def random_gradients(seed: int, count: int, rows: int, columns: int) -> list[Array]:
    return list(np.random.default_rng(seed).standard_normal((count, rows, columns)))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Workers, rows, columns, and a rank below both."""
    rows, columns = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    return draw(st.integers(1, 4)), rows, columns, draw(st.integers(1, min(rows, columns)))


@given(size=sizes(), seed=SEEDS)
@settings(max_examples=60)
def test_workers_together_follow_the_projections(size: tuple[int, int, int, int], seed: int) -> None:
    count, rows, columns, rank = size
    workers = Workers(count, rows, columns, rank)
    error, factor = np.zeros((rows, columns)), workers.first
    for step in range(3):
        gradients = random_gradients(seed + step, count, rows, columns)
        home = workers.bring([g.copy() for g in gradients])
        expected, error, factor = reference(np.mean(gradients, axis=0), error, factor)
        np.testing.assert_allclose(home, expected, atol=1e-8)
        np.testing.assert_allclose(np.mean(workers.errors, axis=0), error, atol=1e-8)


@given(size=sizes(), seed=SEEDS)
@settings(max_examples=60)
def test_nothing_is_lost(size: tuple[int, int, int, int], seed: int) -> None:
    """What came home and what is owed are the gradients."""
    count, rows, columns, rank = size
    workers = Workers(count, rows, columns, rank)
    home, given_ = np.zeros((rows, columns)), np.zeros((rows, columns))
    for step in range(4):
        gradients = random_gradients(seed + step, count, rows, columns)
        given_ += np.mean(gradients, axis=0)
        home += workers.bring(gradients)
        np.testing.assert_allclose(home + np.mean(workers.errors, axis=0), given_, atol=1e-8)


@given(size=sizes(), seed=SEEDS, others=st.integers(1, 5))
@settings(max_examples=60)
def test_the_mean_error_stands_for_all_at_any_number_of_workers(
    size: tuple[int, int, int, int], seed: int, others: int
) -> None:
    """Resumed by other workers whose gradients have the same mean, training goes on as it would have."""
    count, rows, columns, rank = size
    workers = Workers(count, rows, columns, rank)
    workers.bring(random_gradients(seed, count, rows, columns))
    resumed = Workers(others, rows, columns, rank)
    resumed.errors = [np.mean(workers.errors, axis=0) for _ in range(others)]
    resumed.factor = workers.factor
    for step in range(1, 3):
        gradients = random_gradients(seed + step, count, rows, columns)
        theirs = random_gradients(seed - step, others, rows, columns) if seed >= step else [gradients[0]] * others
        theirs = [g + np.mean(gradients, axis=0) - np.mean(theirs, axis=0) for g in theirs]
        np.testing.assert_allclose(workers.bring(gradients), resumed.bring(theirs), atol=1e-7)


@given(size=sizes(), seed=SEEDS)
@settings(max_examples=60)
def test_a_gradient_of_no_higher_rank_comes_home_whole(size: tuple[int, int, int, int], seed: int) -> None:
    """Whatever its rank below that: also where the sketch's columns depend on each other, and for a full rank."""
    count, rows, columns, rank = size
    random = np.random.default_rng(seed)
    own_rank = int(random.integers(1, rank + 1))
    gradient = random.standard_normal((rows, own_rank)) @ random.standard_normal((own_rank, columns))
    workers = Workers(count, rows, columns, rank)
    home = workers.bring([gradient.copy() for _ in range(count)])
    np.testing.assert_allclose(home, gradient, atol=1e-6 * max(1.0, float(np.abs(gradient).max())))


def test_of_a_constant_gradient_the_mean_comes_home() -> None:
    gradient = np.random.default_rng(3).standard_normal((12, 10))
    workers = Workers(2, 12, 10, rank=1)
    home, owed = np.zeros((12, 10)), []
    for step in range(1, 301):
        home += workers.bring([gradient.copy(), gradient.copy()])
        owed.append(float(np.abs(home / step - gradient).max()))
    assert owed[0] > 1.0
    assert owed[-1] < 0.1
    assert owed[-1] < owed[99] < owed[9]


@pytest.mark.parametrize("rows_without", [0, 4])
def test_a_gradient_of_zeros_does_not_end_it(rows_without: int) -> None:
    """An embedding whose first words never appear: P's first unit vectors would find nothing there for ever."""
    workers = Workers(2, 12, 10, rank=2)
    zeros = [np.zeros((12, 10)), np.zeros((12, 10))]
    assert not workers.bring(zeros).any()
    gradient = np.random.default_rng(5).standard_normal((12, 10))
    gradient[:rows_without] = 0
    assert np.abs(workers.bring([gradient, gradient.copy()])).max() > 0.1


@given(rows=st.integers(1, 300), columns=st.integers(1, 300), rank=st.integers(1, 64))
def test_what_pays_is_smaller_and_has_a_higher_rank(rows: int, columns: int, rank: int) -> None:
    assert powersgd_rule.pays(rows, columns, rank) == (rows * rank + columns * rank < rows * columns)
    if powersgd_rule.pays(rows, columns, rank):
        assert rank < min(rows, columns)


@given(shape=st.lists(st.integers(0, 5), max_size=4), outputs=st.sampled_from([0, -1]))
def test_a_matrix_has_all_numbers(shape: list[int], outputs: int) -> None:
    rows, columns = powersgd_rule.matrix_shape(shape, outputs)
    assert rows * columns == np.prod(shape, dtype=int)
    if len(shape) >= 2 and rows * columns:
        assert (rows, columns)[outputs] == shape[outputs]


def test_first_factors_are_the_same_everywhere_and_differ_between_parameters() -> None:
    one, again, other = (powersgd_rule.first_factor(place, 7, 3) for place in (4, 4, 5))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one.shape == (7, 3)
    assert one.dtype == np.float32


class Memory(powersgd_rule.Memory):
    """Of one matrix in numpy."""

    _to_host, _assign = staticmethod(np.copy), staticmethod(np.copyto)

    def __init__(self) -> None:
        first = np.ones((4, 2))
        super().__init__(1, {"w": SimpleNamespace(error=np.ones((3, 4)), factor=first + 1, first_factor=first)})


def test_saved_arrays_must_fit() -> None:
    fitting: State = {
        powersgd_rule.ERRORS + "w": np.full((3, 4), 5.0),
        powersgd_rule.FACTORS + "w": np.full((4, 2), 7.0),
    }
    others: State = {"model/w": np.zeros(3), "ema/w": np.zeros(3)}
    memory = Memory()
    memory.load_state(fitting | others)
    assert_equal(memory.state(), fitting)
    wrongs: list[State] = [{powersgd_rule.FACTORS + "w": np.zeros((4, 3))}, {powersgd_rule.ERRORS + "v": np.zeros(3)}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="--powersgd-rank"):
            memory.load_state(fitting | wrong)
    memory.load_state(others)
    fresh = {powersgd_rule.ERRORS + "w": np.zeros((3, 4)), powersgd_rule.FACTORS + "w": np.ones((4, 2))}
    assert_equal(memory.state(), fresh)
