"""A sketch's quantiles are those of the values within its error, however the values come into it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.quantile_sketch import LONGEST, RELATIVE_ERROR, SHORTEST, QuantileSketch

SECONDS = st.floats(SHORTEST, LONGEST)
VALUES = st.lists(SECONDS, min_size=1, max_size=60)


def sketch_of(*parts: list[float]) -> QuantileSketch:
    sketch = QuantileSketch()
    for part in parts:
        sketch.add(part)
    return sketch


def told(sketch: QuantileSketch) -> tuple[object, list[float]]:
    return sketch.summary(), [sketch.quantile(share / 20) for share in range(21)]


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_the_value_of_that_rank_within_the_error(values: list[float], share: float) -> None:
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = sketch_of(values).quantile(share)
    assert abs(found - exact) <= (RELATIVE_ERROR + 1e-9) * exact


@given(VALUES)
def test_the_summary_is_ordered_and_its_largest_is_exact(values: list[float]) -> None:
    summary = sketch_of(values).summary()
    assert summary.count == len(values)
    assert summary.p50 <= summary.p90 <= summary.p99 <= summary.max == max(values)


@given(st.lists(VALUES, min_size=3, max_size=3))
def test_values_may_be_added_in_any_order_and_in_any_groups(parts: list[list[float]]) -> None:
    a, b, c = parts
    together = told(sketch_of([*a, *b, *c]))
    assert told(sketch_of(a, b, c)) == told(sketch_of([*a, *b], c)) == told(sketch_of(c, [], [*b, *a])) == together


def test_what_is_out_of_range_counts_at_its_ends() -> None:
    sketch = sketch_of([0.0, 1e-9, 1e6])
    assert sketch.count == 3
    assert sketch.quantile(0.3) <= SHORTEST
    assert sketch.quantile(1.0) >= LONGEST * (1 - RELATIVE_ERROR)
    assert sketch.summary().max == 1e6


def test_none_and_only_zeros() -> None:
    assert told(sketch_of([])) == told(QuantileSketch())
    assert QuantileSketch().summary().count == QuantileSketch().quantile(0.5) == 0
    assert sketch_of([0.0, 0.0]).quantile(0.5) == 0.0


def test_its_memory_does_not_depend_on_how_much_is_added() -> None:
    sketch = QuantileSketch()
    before = sketch._counts.nbytes
    sketch.add(np.geomspace(1e-9, 1e9, 100_000))
    assert sketch._counts.nbytes == before < 8000
    assert sketch.count == 100_000
