"""A rank that keeps the others waiting is named with its cause, and no rank is for noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.slowness.causes import NOTHING, Cause, Pressure, Straggler
from hvdtrain.slowness.stragglers import (
    RULES,
    WINDOW_SECONDS,
    RankTimes,
    Stragglers,
    _medians_of_others,
)

CALM = Pressure(wall=2.0, cpu=1.8)
HOSTS = ("one", "two", "three", "four")


def interval(own: Sequence[float], data: Sequence[float] | None = None, *pressures: Pressure) -> list[RankTimes]:
    """As synchronous training makes it: all ranks wait for the slowest one."""
    waits = [max(own) - seconds + 0.01 for seconds in own]
    data = data or [0.0] * len(own)
    told = pressures or [CALM] * len(own)
    return [RankTimes(d, o - d, w, p) for o, d, w, p in zip(own, data, waits, told, strict=True)]


def watch(intervals: Sequence[Sequence[RankTimes]], hosts: Sequence[str] = HOSTS) -> tuple[Stragglers, list[Straggler]]:
    """Each interval has ten updates; the first one, whose times do not count, is made here."""
    stragglers = Stragglers(hosts)
    news = list(stragglers.add(1, intervals[0]))
    for number, ranks in enumerate(intervals, start=1):
        news += stragglers.add(1 + 10 * number, ranks)
    return stragglers, news


CASES: list[tuple[Cause, float, Pressure]] = [
    ("cpu throttled", 0.0, Pressure(wall=2.0, cpu=0.5, throttled=1.5, queued=1.5)),
    ("cpu stolen", 0.0, Pressure(wall=2.0, cpu=0.5, stolen=1.4)),
    ("cpu contention", 0.0, Pressure(wall=2.0, cpu=0.5, queued=1.5)),
    ("swapping", 0.0, Pressure(wall=2.0, cpu=0.5, major_faults=800, swapped=900, memory_stall=1.5)),
    ("slow disk", 2.5, Pressure(wall=2.0, cpu=0.5, io_stall=1.5)),
    ("slow input", 2.5, Pressure(wall=2.0, cpu=0.5)),
    ("unknown", 0.0, Pressure(wall=2.0, cpu=0.5)),
]


@pytest.mark.parametrize(("cause", "data", "pressure"), CASES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_slow_rank_is_named_with_its_cause(cause: Cause, data: float, pressure: Pressure, size: int) -> None:
    own, pressures = [1.0] * size, [CALM] * size
    own[1], pressures[1] = 4.0, pressure
    stragglers, news = watch([interval(own, [0.0, data, 0.0, 0.0][:size], *pressures)] * 20)
    assert [(found.rank, found.cause) for found in news] == [(1, cause)]
    (found,) = stragglers.found
    assert (found.rank, found.host, found.cause) == (1, "two", cause)
    assert (found.since_step, found.until_step) == (2, 201)
    assert found.slower_by == 3.0
    assert found.share_of_time_others_waited == pytest.approx(3.01 / 4.01, abs=1e-3)
    assert found.sentence.startswith("Rank 1 on two is slow by 300%, and the others wait 75% of their time for it; ")
    assert (cause if cause != "unknown" else "the cause is not known") in found.sentence


def test_a_rank_that_waits_least_is_not_named_where_nobody_waits_long() -> None:
    """Local SGD: each rank goes on by itself."""
    ranks = [RankTimes(0.0, 1.0, 0.01, CALM), RankTimes(0.0, 1.5, 0.01, CALM)]
    assert watch([ranks] * 20)[1] == []


def test_a_slow_start_and_some_slow_intervals_are_nobodys_fault() -> None:
    slow, equal = interval([1.0, 9.0]), interval([1.0, 1.0])
    stragglers = Stragglers()
    assert stragglers.add(1, slow) == []
    for number in range(30):
        assert stragglers.add(2 + number, slow if 10 <= number < 15 else equal) == []


def test_one_that_recovers_is_told_until_then_and_named_once_if_it_slows_down_again() -> None:
    slow, equal = interval([1.0, 2.0]), interval([1.0, 1.0])
    stragglers, news = watch([*[slow] * 10, *[equal] * 10, *[slow] * 10])
    assert len(news) == len(stragglers.found) == 1
    assert stragglers.found[0].until_step == 301
    short, _ = watch([*[slow] * 10, *[equal] * 10])
    assert short.found[0].until_step == 101


def test_a_cause_that_becomes_known_replaces_the_unknown_one() -> None:
    """Linux's counters come later than the first windows, where no interval has brought any for long."""
    throttled = Pressure(wall=2.0, throttled=1.5)
    blind = interval([1.0, 4.0], None, NOTHING, NOTHING)
    seeing = interval([1.0, 4.0], None, CALM, throttled)
    stragglers, news = watch([*[blind] * 16, *[seeing] * 10])
    assert [(found.cause, found.since_step) for found in news] == [("unknown", 2), ("cpu throttled", 2)]
    assert [found.cause for found in stragglers.found] == ["cpu throttled"]
    early, _ = watch([*[blind] * 5, seeing])
    assert [found.cause for found in early.found] == ["cpu throttled"]


def test_two_slow_ranks_of_four_and_their_own_causes() -> None:
    pressures = [CALM, Pressure(wall=2.0, throttled=1.5), CALM, Pressure(wall=2.0, queued=1.5)]
    stragglers, _ = watch([interval([1.0, 4.0, 1.0, 3.0], None, *pressures)] * 10)
    assert [(found.rank, found.cause) for found in stragglers.found] == [(1, "cpu throttled"), (3, "cpu contention")]


def link(busy: Sequence[float], wait: float = 1.0) -> list[RankTimes]:
    """Ranks that are equal, and wait; their connections are in use for a share of the time."""
    return [
        RankTimes(0.0, 1.0, wait, Pressure(wall=2.0, send_busy=2 * share, sent_bytes=1e6, round_trip=0.02))
        for share in busy
    ]


@pytest.mark.parametrize(
    ("busy", "rank"), [((0.9, 0.9), None), ((0.9, 0.1), 0), ((0.1, 0.1, 0.8), 2), ((0.8, 0.7, 0.8), None)]
)
def test_a_slow_link_is_named_where_all_wait_and_send(busy: Sequence[float], rank: int | None) -> None:
    stragglers, news = watch([link(busy)] * (10 if rank is not None else 20))
    assert [(found.rank, found.cause, found.slower_by) for found in stragglers.found] == [(rank, "slow link", 0.0)]
    assert len(news) == 1
    assert news[0].host == ("" if rank is None else HOSTS[rank])
    assert "slow link" in news[0].sentence
    assert "round trip in seconds: 0.02" in news[0].sentence


def test_whose_link_is_slow_may_be_told_later() -> None:
    """Acknowledgements wait behind what the slow side sends, so that at first both connections look busy."""
    both, one = [link((0.9, 0.9))], [link((0.1, 0.9))]
    assert watch(both * 10)[0].found == []
    early, news = watch([*both * 4, *one * 16])
    assert [(found.rank, found.cause) for found in early.found] == [(1, "slow link")]
    assert len(news) == 1
    late, news = watch([*both * 20, *one * 16, *both * 16])
    assert [(found.rank, found.since_step) for found in late.found] == [(1, news[0].since_step)]
    assert [found.rank for found in news] == [None, 1]


@pytest.mark.parametrize("ranks", [link([0.05, 0.05]), link([0.9, 0.9], wait=0.1), link([0.0, 0.0])])
def test_no_link_is_named_that_is_idle_or_for_which_nobody_waits(ranks: list[RankTimes]) -> None:
    assert watch([ranks] * 10)[1] == []


def test_the_link_is_named_where_a_rank_needs_longer_for_work_that_takes_no_time() -> None:
    """Nine tenths of a step are the network; another program doubles what one rank needs for the rest."""
    work, ranks = [1.0, 2.0], link((0.1, 0.9), wait=18.0)
    busy = [times._replace(compute=own, allreduce=20.0 - own) for times, own in zip(ranks, work, strict=True)]
    assert {(found.rank, found.cause) for found in watch([busy] * 20)[0].found} == {(1, "slow link")}
    assert {found.cause for found in watch([busy[::-1]] * 20)[0].found} == {"slow link"}


NOISE = 0.06
"""By this share times differ by chance: the slowest is then less slower than the fastest than any rule asks for."""


FACTORS = st.lists(st.floats(1 - NOISE, 1 + NOISE), min_size=1, max_size=3)
PRESSURES = st.builds(Pressure, st.just(2.0), *[st.floats(0, 2)] * 6)


@given(st.lists(st.tuples(FACTORS, PRESSURES), min_size=2, max_size=5))
@settings(max_examples=60)
def test_equal_ranks_are_never_blamed(ranks: list[tuple[list[float], Pressure]]) -> None:
    """Whatever pattern the noise has, in its bounds, and whatever Linux counts."""
    assert 1 + min(rule.slower for rule in RULES) > (1 + NOISE) / (1 - NOISE)
    pressures = [pressure for _, pressure in ranks]
    intervals = [
        interval([factors[number % len(factors)] for factors, _ in ranks], None, *pressures) for number in range(18)
    ]
    assert watch(intervals)[1] == []


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_equal_ranks_are_not_blamed_for_large_noise_without_a_pattern(size: int, seed: int) -> None:
    """A standard deviation of 15 %, in a minute and a half."""
    times = np.exp(np.random.default_rng(seed).normal(0.0, 0.15, (200, size))).tolist()
    assert watch([interval(own) for own in times])[1] == []


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_a_slow_rank_is_found_in_that_noise(size: int, seed: int) -> None:
    times = np.exp(np.random.default_rng(seed).normal(0.0, 0.15, (60, size)))
    times[:, -1] *= 1.6
    assert [found.rank for found in watch([interval(own) for own in times.tolist()])[1]] == [size - 1]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9))
def test_medians_of_others(values: list[int]) -> None:
    expected = [median(values[:i] + values[i + 1 :]) for i in range(len(values))]
    assert _medians_of_others([float(value) for value in values]) == expected


def test_many_small_intervals_make_a_window() -> None:
    small = [rank._replace(data=0.0, compute=rank.compute * 0.01) for rank in interval([1.0, 2.0])]
    small = [RankTimes(0.0, rank.compute, 0.02 - rank.compute + 0.001, NOTHING) for rank in small]
    stragglers = Stragglers()
    needed = round(16 * WINDOW_SECONDS / 0.021)  # no rank has looked at Linux's counters
    told = [len(stragglers.add(step, small)) for step in range(1, 2 * needed)]
    assert sum(told) == 1
    assert not any(told[: needed - 2])


def test_one_rank_alone_is_never_slow() -> None:
    stragglers = Stragglers()
    for step in range(1, 40):
        assert stragglers.add(step, [RankTimes(5.0, 5.0, 0.0)]) == []


@pytest.mark.parametrize("busy", [(0.9, 0.9), (0.9, 0.1)])
def test_a_straggler_is_read_from_json_as_it_was_written(busy: Sequence[float]) -> None:
    (found,) = watch([link(busy)] * 20)[0].found
    written = json.loads(json.dumps(asdict(found)))
    assert Straggler.from_json(written) == found
    for wrong in ({"cause": "magic"}, {"rank": "1"}, {"host": 3}, {"facts": {"cpu": "x"}}, {"since_step": None}):
        assert Straggler.from_json({**written, **wrong}) is None
    assert Straggler.from_json({**written, "facts": {"of a later version": 1.0}}) is not None
