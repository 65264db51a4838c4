"""Where ranks know their own times only, all of them find the slow ranks that a list of all times shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.rank_columns import summarized_seconds
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.engine.many_stragglers import ManyStragglers
from hvdtrain.measured import PARTS, Seconds
from hvdtrain.slowness.causes import NOTHING, Pressure, Straggler
from hvdtrain.slowness.stragglers import RankTimes, Stragglers

SIZE = 8
HOSTS = [f"node{rank // 2}" for rank in range(SIZE)]
UNMEASURED = {part.name: np.zeros(SIZE) for part in PARTS}
CALM = Pressure(wall=2.0, cpu=1.8)
Interval = Sequence[RankTimes]


def interval(own: Sequence[float], data: float = 0.0, slow: Pressure = CALM) -> Interval:
    """All wait for the slowest rank. Only that one waits `data` seconds for data and has the pressure `slow`."""
    longest = max(own)
    return [
        RankTimes(
            data if seconds == longest else 0.0,
            seconds - (data if seconds == longest else 0.0),
            longest - seconds + 0.01,
            slow if seconds == longest else CALM,
        )
        for seconds in own
    ]


def listed(intervals: Sequence[Interval]) -> tuple[list[Straggler], list[Straggler]]:
    stragglers = Stragglers(HOSTS)
    news = list(stragglers.add(1, intervals[0]))
    for number, ranks in enumerate(intervals, start=1):
        news += stragglers.add(1 + 10 * number, ranks)
    return news, stragglers.found


def reduced(intervals: Sequence[Interval]) -> list[tuple[list[Straggler], list[Straggler]]]:
    def work(comm: ThreadCommunicator) -> tuple[list[Straggler], list[Straggler]]:
        stragglers, rank = ManyStragglers(comm, HOSTS), comm.topology.rank
        news: list[Straggler] = []
        for number, ranks in enumerate([intervals[0], *intervals]):
            columns = {
                name: np.array([getattr(each, name) for each in ranks]) for name in ("data", "compute", "allreduce")
            }
            summary = summarized_seconds({**UNMEASURED, **columns}, Seconds())
            news += stragglers.add(1 + 10 * number, ranks[rank], summary)
        return news, stragglers.found

    return all_well(run_on_ranks(SIZE, work))


def assert_alike(intervals: Sequence[Interval]) -> list[Straggler]:
    """All ranks find the same, and the same as the list shows; returns it."""
    first, *others = reduced(intervals)
    assert all(each == first for each in others)
    for found, expected in zip(first, listed(intervals), strict=True):
        assert [(each.rank, each.host, each.cause) for each in found] == [
            (each.rank, each.host, each.cause) for each in expected
        ]
        for one, other in zip(found, expected, strict=True):
            assert (one.since_step, one.until_step) == (other.since_step, other.until_step)
            assert one.slower_by == pytest.approx(other.slower_by, rel=0.1)
            assert one.share_of_time_others_waited == pytest.approx(other.share_of_time_others_waited, abs=0.02)
            assert one.facts == other.facts
    return first[1]


@pytest.mark.parametrize(
    ("data", "pressure"),
    [
        (0.0, Pressure(wall=2.0, cpu=0.5, throttled=1.5, queued=1.5)),
        (2.5, Pressure(wall=2.0, cpu=0.5, io_stall=1.5)),
        (0.0, Pressure(wall=2.0, cpu=0.5)),
    ],
)
def test_a_slow_rank_is_named_by_all(data: float, pressure: Pressure) -> None:
    own = [1.0, 1.01, 0.99, 1.02, 1.0, 4.0, 0.98, 1.0]
    (found,) = assert_alike([interval(own, data, pressure)] * 18)
    assert (found.rank, found.host) == (5, "node2")


def test_noise_and_a_slow_start_are_nobodys_fault() -> None:
    slow, equal = interval([1.0] * 7 + [9.0]), interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.1])
    assert assert_alike([*[slow] * 3, *[equal] * 20]) == []


def test_a_rank_that_recovers_and_slows_down_again_is_named_once() -> None:
    slow, equal = interval([1.0] * 7 + [2.0]), interval([1.0] * 8)
    assert len(assert_alike([*[slow] * 8, *[equal] * 8, *[slow] * 8])) == 1


def test_a_cause_that_becomes_known_replaces_the_unknown_one() -> None:
    blind = [RankTimes(each.data, each.compute, each.allreduce, NOTHING) for each in interval([1.0] * 7 + [4.0])]
    seeing = interval([1.0] * 7 + [4.0], slow=Pressure(wall=2.0, throttled=1.5))
    (found,) = assert_alike([*[blind] * 16, *[seeing] * 8])
    assert found.cause == "cpu throttled"


@pytest.mark.parametrize("busy", [[0.3] * 3 + [0.8] + [0.3] * 4, [0.5] * 8])
def test_a_slow_link_is_named_where_nobody_is_slow(busy: list[float]) -> None:
    ranks = [
        RankTimes(0.0, 1.0, 1.0, Pressure(wall=2.0, send_busy=2 * share, sent_bytes=1e6, round_trip=0.02))
        for share in busy
    ]
    (found,) = assert_alike([ranks] * 18)
    assert (found.rank, found.cause) == (3 if 0.8 in busy else None, "slow link")


def test_short_readings_are_added_up_to_windows() -> None:
    short = [RankTimes(0.0, each.compute / 10, each.allreduce / 10, CALM) for each in interval([1.0] * 7 + [4.0])]
    assert len(assert_alike([short] * 40)) == 1
