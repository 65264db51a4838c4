"""Reductions of fixed size say of all ranks what a list of all would say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_columns import summarize
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.comm.rank_reduction import BUCKETS, Reduced, reduce_ranks
from hvdtrain.rank_summary import RankValue

VALUES = st.one_of(st.just(0.0), st.floats(1e-6, 1e4), st.just(math.nan))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_all_ranks_have_the_same_summary_as_of_the_list(rows: list[tuple[float, float]]) -> None:
    def work(comm: ThreadCommunicator) -> Reduced:
        return reduce_ranks(comm, rows[comm.topology.rank], "x", named=[1], totals=[1.0, 2.0], same=[3.0])

    first, *others = all_well(run_on_ranks(len(rows), work))
    assert all(repr(each.summaries) == repr(first.summaries) for each in others)
    assert first.totals.tolist() == [len(rows), 2 * len(rows)]
    for place, found in enumerate(first.summaries):
        exact = summarize(np.array([row[place] for row in rows]))
        assert found.count == exact.count
        if not exact.count:
            continue
        assert (found.min, found.max) == (exact.min, exact.max)
        assert found.mean == pytest.approx(exact.mean)
        least = min((row[place] for row in rows if row[place] > 0), default=1.0)
        width = max(exact.max / least, 1.0) ** (1 / (BUCKETS - 1))
        for name in ("p25", "median", "p75"):
            near = getattr(exact, name) * (width - 1) * 1.001
            assert abs(getattr(found, name) - getattr(exact, name)) <= near
        if place == 1:
            assert [each.rank for each in found.largest] == [each.rank for each in exact.largest]
            for each, true in zip(found.largest, exact.largest, strict=True):
                assert each.value == pytest.approx(true.value, rel=1e-6)


def test_one_slow_rank_changes_no_quartile_and_those_of_every_second_host_are_named() -> None:
    """All others wait some microseconds for data; at eight workers a host, ranks 3, 19 and 35 are slow."""
    fast, slow = np.linspace(1e-5, 1.5e-5, 40), {3: 10.0, 19: 9.9, 35: 9.8}

    def work(comm: ThreadCommunicator) -> Reduced:
        rank = comm.topology.rank
        return reduce_ranks(comm, [10.0 if rank == 7 else fast[rank], slow.get(rank, 1.0)], "x", named=[1])

    waits, busy = all_well(run_on_ranks(40, work))[0].summaries
    for found, place in ((waits.p25, 9), (waits.median, 19), (waits.p75, 29)):
        assert found == pytest.approx(fast[place], rel=0.3)
    assert [each.rank for each in busy.largest[:3]] == [3, 19, 35]


def test_those_with_the_most_are_named_with_their_hosts_by_every_rank() -> None:
    def work(comm: ThreadCommunicator) -> Reduced:
        rank = comm.topology.rank
        return reduce_ranks(comm, [float(rank % 5)], "x", named=[0], hosts=["a", "b", "c", "d", "e", "f"])

    for reduced in all_well(run_on_ranks(6, work)):
        largest = (RankValue(4, 4.0, "e"), RankValue(3, 3.0, "d"), RankValue(2, 2.0, "c"), RankValue(1, 1.0, "b"))
        assert reduced.summaries[0].largest == largest


def test_ranks_that_differ_find_out_before_they_add_up_other_things() -> None:
    def work(comm: ThreadCommunicator) -> Reduced:
        rank = comm.topology.rank
        return reduce_ranks(comm, [1.0], "x", totals=[0.0] * (rank + 1), same=[rank])

    assert [reduced.equal for reduced in all_well(run_on_ranks(3, work))] == [False] * 3


def test_totals_keep_what_is_not_finite() -> None:
    def work(comm: ThreadCommunicator) -> Reduced:
        return reduce_ranks(comm, [1.0], "x", totals=[math.nan if comm.topology.rank else 1.0, math.inf])

    for reduced in all_well(run_on_ranks(2, work)):
        assert math.isnan(reduced.totals[0])
        assert reduced.totals[1] == math.inf
