"""Which ranks are called slow: those that are, with what they spend their time on, and nobody by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.rank_times import RankTimes


def times(lines: int, own: dict[int, tuple[str, float]], size: int = 4, noise: float = 0.1, seed: int = 0) -> RankTimes:
    """Each rank's own work takes a second a line, with some noise, and `own` times as long in one part of it."""
    random, ranks = np.random.default_rng(seed), RankTimes()
    for line in range(lines):
        rows = []
        for rank in range(size):
            row = {"data": 0.3, "compute": 0.7 * float(random.normal(1, noise))}
            part, factor = own.get(rank, ("data", 1.0))
            row[part] *= factor
            rows.append(row)
        longest = max(sum(row.values()) for row in rows)
        ranks.add([{**row, "allreduce": longest - sum(row.values()), "checkpoint": 0.1} for row in rows], line == 0)
    return ranks


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_slow_by_chance(seed: int) -> None:
    for size in (2, 8):
        assert times(30, {}, size, noise=0.3, seed=seed).slow() == []


@pytest.mark.parametrize("size", [2, 3, 16])
@pytest.mark.parametrize("part", ["data", "compute"])
def test_a_slow_rank_is_named_with_the_part(size: int, part: str) -> None:
    (slow,) = times(30, {1: (part, 2.0)}, size).slow()
    assert (slow.rank, slow.part) == (1, part)
    assert slow.excess == pytest.approx({"data": 0.3, "compute": 0.7}[part], abs=0.1)


def test_two_slow_ranks_the_slower_one_first() -> None:
    slow = times(30, {2: ("compute", 1.5), 5: ("data", 3.0)}, 8).slow()
    assert [(each.rank, each.part) for each in slow] == [(5, "data"), (2, "compute")]


def test_a_few_lines_name_nobody_and_neither_does_the_start() -> None:
    assert not times(9, {1: ("data", 5.0)}).can_tell
    assert times(9, {1: ("data", 5.0)}).slow() == []
    ranks = times(1, {1: ("data", 500.0)})  # as of a rank that compiles first
    for _ in range(20):
        ranks.add([{"data": 0.1, "compute": 0.2}] * 4, first_of_start=False)
    assert ranks.can_tell
    assert ranks.slow() == []


NUMBERS = st.floats(0, 1e6) | st.integers(0, 5)
ODD = st.sampled_from([None, "", "1", "much", float("nan"), -1.5, [], [2], {"data": 1}])
SOME = st.dictionaries(st.sampled_from(["data", "compute", "x"]), NUMBERS | ODD)
ALIKE = st.fixed_dictionaries({"data": NUMBERS, "compute": NUMBERS})
LINES = st.lists(st.lists(ALIKE, min_size=1, max_size=3) | st.lists(SOME | ODD, min_size=1, max_size=3), max_size=9)


@given(lines=LINES, firsts=st.lists(st.booleans(), min_size=9, max_size=9))
def test_sums_are_of_whatever_is_a_time(lines: list[list[Any]], firsts: list[bool]) -> None:
    ranks, expected = RankTimes(), [dict[str, float]() for _ in range(max(map(len, lines), default=0))]
    for line, first in zip(lines, firsts, strict=False):
        ranks.add(line, first)
        for total, row in zip(expected, line, strict=False):
            for part, value in row.items() if isinstance(row, dict) else ():
                if isinstance(value, int | float) and value >= 0:
                    total[part] = total.get(part, 0.0) + value
    assert ranks.sums == [pytest.approx(total) for total in expected]


def test_sums_are_of_all_lines_with_any_number_of_ranks() -> None:
    ranks = RankTimes()
    for size in (3, 1, 2):
        ranks.add([{"data": 1.0, "forward": 2.0}] * size, first_of_start=False)
    assert [total["data"] for total in ranks.sums] == [3.0, 2.0, 1.0]
    assert ranks.parts == ["data", "forward"]
    ranks.add({"data": 1.0}, first_of_start=False)
    ranks.add([], first_of_start=False)
    assert len(ranks.sums) == 3
