"""Sums of the times of ranks: of whatever is a time, in lines of any shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.history.ranks import RankTimes

NUMBERS = st.floats(0, 1e6) | st.integers(0, 5)
ODD = st.sampled_from([None, "", "1", "much", float("nan"), -1.5, [], [2], {"data": 1}])
SOME = st.dictionaries(st.sampled_from(["data", "compute", "x"]), NUMBERS | ODD)
ALIKE = st.fixed_dictionaries({"data": NUMBERS, "compute": NUMBERS})
LINES = st.lists(st.lists(ALIKE, min_size=1, max_size=3) | st.lists(SOME | ODD, min_size=1, max_size=3), max_size=9)


@given(lines=LINES)
def test_sums_are_of_whatever_is_a_time(lines: list[list[Any]]) -> None:
    ranks, expected = RankTimes(), [dict[str, float]() for _ in range(max(map(len, lines), default=0))]
    for line in lines:
        ranks.add(line)
        for total, row in zip(expected, line, strict=False):
            for part, value in row.items() if isinstance(row, dict) else ():
                if isinstance(value, int | float) and value >= 0:
                    total[part] = total.get(part, 0.0) + value
    assert ranks.sums == [pytest.approx(total) for total in expected]


def test_sums_are_of_all_lines_with_any_number_of_ranks() -> None:
    ranks = RankTimes()
    for size in (3, 1, 2):
        ranks.add([{"data": 1.0, "forward": 2.0}] * size)
    assert [total["data"] for total in ranks.sums] == [3.0, 2.0, 1.0]
    assert ranks.parts == ["data", "forward"]
    ranks.add({"data": 1.0})
    ranks.add([])
    assert len(ranks.sums) == 3
