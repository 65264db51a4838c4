"""A summary of a number of each rank says what the whole list says: its quartiles, and who has the most."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.rank_columns import summarize

from hvdtrain.rank_summary import NAMED, RankSummary, RankValue, summarizes


def test_lists_become_summaries_from_64_ranks_on_or_where_it_is_asked_for() -> None:
    assert [summarizes("auto", ranks) for ranks in (1, 63, 64, 10_000)] == [False, False, True, True]
    assert not summarizes("ranks", 10_000)
    assert summarizes("summary", 1)


def test_quartiles_and_the_largest_with_their_hosts() -> None:
    summary = summarize(np.array([5.0, 1.0, 4.0, 2.0, 3.0, 0.0, 7.0, 6.0]), [f"node{rank // 2}" for rank in range(8)])
    largest = (
        RankValue(6, 7.0, "node3"),
        RankValue(7, 6.0, "node3"),
        RankValue(0, 5.0, "node0"),
        RankValue(2, 4.0, "node1"),
    )
    assert summary == RankSummary(8, 3.5, 0.0, 1.0, 3.0, 5.0, 7.0, largest)


def test_ranks_that_have_not_measured_are_not_counted() -> None:
    summary = summarize(np.array([math.nan, 2.0, math.nan, 1.0]))
    assert (summary.count, summary.mean, summary.max) == (2, 1.5, 2.0)
    assert [each.rank for each in summary.largest] == [1, 3]


def test_where_no_rank_has_measured_all_numbers_are_unknown() -> None:
    summary = summarize(np.full(3, math.nan))
    assert summary.count == 0
    assert summary.as_json(6) == {
        "count": 0,
        **dict.fromkeys(("mean", "min", "p25", "median", "p75", "max")),
        "largest": [],
    }


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_the_nearest_ranks(values: list[float]) -> None:
    summary, ordered = summarize(np.array(values)), sorted(values)
    for share, found in ((0.25, summary.p25), (0.5, summary.median), (0.75, summary.p75)):
        assert found == ordered[math.ceil(share * len(values)) - 1]
    expected = sorted(range(len(values)), key=lambda rank: (-values[rank], rank))[:NAMED]
    assert [each.rank for each in summary.largest] == expected
    assert (summary.min, summary.max) == (ordered[0], ordered[-1])
