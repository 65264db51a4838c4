"""A curve in bounded memory: whatever it is given, no extreme and no end is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.curve import Curve, Missed, Point

VALUES = st.floats(-1e6, 1e6, allow_nan=False)
CURVES = st.lists(st.tuples(st.integers(0, 10**7), VALUES), min_size=1, max_size=80, unique_by=lambda point: point[0])


def curve_of(points: list[Point], buckets: int) -> Curve:
    curve = Curve(buckets)
    for step, value in points:
        curve.add(step, value)
    return curve


@given(points=CURVES, buckets=st.integers(1, 9), fewer=st.none() | st.integers(1, 9), in_order=st.booleans())
def test_no_extreme_is_lost(points: list[Point], buckets: int, fewer: int | None, in_order: bool) -> None:
    """In whichever order the steps come."""
    curve = curve_of(sorted(points) if in_order else points, buckets)
    kept, found = curve.points(fewer), curve.buckets(fewer)
    assert len(found) <= min(buckets, fewer or buckets)
    assert len(kept) <= 4 * len(found)
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (min(points), max(points))
    values = [value for _, value in points]
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)
    assert sum(bucket.count for bucket in found) == len(points)
    assert sum(bucket.total for bucket in found) == pytest.approx(math.fsum(values), abs=1e-3)


@given(points=CURVES, buckets=st.integers(1, 9))
def test_each_bucket_has_the_extremes_of_its_own_steps(points: list[Point], buckets: int) -> None:
    for bucket in curve_of(points, buckets).buckets():
        own = [value for step, value in points if bucket.first[0] <= step <= bucket.last[0]]
        assert (bucket.least[1], bucket.greatest[1], bucket.count) == (min(own), max(own), len(own))


@given(points=CURVES)
def test_a_short_curve_is_kept_as_it_is(points: list[Point]) -> None:
    points = [(place, value) for place, (_, value) in enumerate(points)]
    assert curve_of(points, len(points)).points() == points


def test_the_next_value_of_a_step_replaces_it() -> None:
    curve = curve_of([(1, 5.0), (2, 9.0), (2, 3.0), (3, 4.0), (3, 1.0)], 8)
    assert curve.points() == [(1, 5.0), (2, 3.0), (3, 1.0)]


def test_looking_at_a_curve_does_not_change_it() -> None:
    curve = curve_of([(step, float(step)) for step in range(20)], 4)
    before = curve.points()
    assert curve.whole() is not None
    assert curve.buckets(2) != []
    assert curve.points() == before
    curve.add(19, 7.0)  # still replaces the newest value
    assert curve.points()[-1] == (19, 7.0)


def test_an_empty_curve_and_values_that_are_no_numbers() -> None:
    curve = Curve()
    assert (bool(curve), curve.points(), curve.whole()) == (False, [], None)
    for step in (30, 10, 20):
        curve.miss(step)
    assert curve.missed == Missed(10, 30, 3)
    assert not curve
