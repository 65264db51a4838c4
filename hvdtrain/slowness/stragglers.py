"""Which rank keeps the others waiting, beyond noise: from the times of all ranks, so that each rank finds the same one.

A rank's own time is what it would need without the others: its steps without the wait for their gradients. Times are
added up in windows, because those of a few small steps differ by chance. A rank is named if its own time is longer than
the median of the others' in nearly all of many windows, or by far in each of some, and if the others do wait.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import reduce
from statistics import mean, median
from typing import Final, NamedTuple

from hvdtrain.slowness.causes import COLUMNS, NOTHING, Cause, Excess, Pressure, Straggler, cause_of, facts_of
from hvdtrain.slowness.known_stragglers import KnownStragglers

WINDOW_SECONDS: Final = 0.5
"""Of the slowest rank, at least, before a window is looked at."""


class Rule(NamedTuple):
    """Who is slow."""

    windows: int  # the last ones, which are looked at
    most: int  # in so many of them the rank's own time is longer, and in all of them together
    slower: float  # by this share, at least, than the median of the others'


RULES: Final = (Rule(windows=16, most=14, slower=0.15), Rule(windows=6, most=6, slower=0.5))
"""The longest first. If times differ by chance with a standard deviation of 15 %, a rank meets one of these in less
than one of a million windows."""

WINDOWS: Final = max(rule.windows for rule in RULES)
FEWEST: Final = min(rule.windows for rule in RULES)
_WAITED: Final = 0.05  # share of their time in which the others wait, at least
_EXPLAINED: Final = 0.2  # of this wait, at least, is the time that the slow rank needs more than they; else the network
LINK: Final = 0.3  # share of its time in which every rank waits, where the network is the cause
BUSY: Final = 0.2  # share of the time in which a slow link is being used, at least
CLEARLY: Final = 1.5  # times as long as the others' connections is that one in use whose link is slow
INSTANT: Final = 1e-9  # seconds, by which may be divided


class RankTimes(NamedTuple):
    """Of one rank since the last call: seconds, which do not overlap, and what kept it from its work."""

    data: float
    compute: float
    allreduce: float
    pressure: Pressure = NOTHING

    @property
    def own(self) -> float:
        return self.data + self.compute

    @property
    def total(self) -> float:
        return self.own + self.allreduce

    def plus(self, other: "RankTimes") -> "RankTimes":
        pressure = self.pressure if other.pressure is NOTHING else self.pressure.plus(other.pressure)
        return RankTimes(
            self.data + other.data, self.compute + other.compute, self.allreduce + other.allreduce, pressure
        )


class _Window(NamedTuple):
    """Some updates, one after the other."""

    first: int
    last: int
    ranks: Sequence[RankTimes]
    slower: Sequence[Sequence[bool]]  # for each rule, whether each rank needs longer than it allows
    waits: float  # the share of its time in which every rank waits, at least

    @classmethod
    def of(cls, first: int, last: int, ranks: Sequence[RankTimes]) -> "_Window":
        work = [rank.own for rank in ranks]
        times = list(zip(work, _medians_of_others(work), strict=True))
        slower = [[time >= (1 + rule.slower) * others for time, others in times] for rule in RULES]
        return cls(first, last, ranks, slower, min(rank.allreduce / max(rank.total, INSTANT) for rank in ranks))


class Stragglers:
    """Watches a run. All ranks add the same times, so all of them find the same.

    Args:
        hosts: of each rank, where they are known.
        start: updates done before the first times.
    """

    def __init__(self, hosts: Sequence[str] = (), start: int = 0) -> None:
        self._hosts, self._step = hosts, start
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)
        self._open: tuple[int, Sequence[RankTimes]] | None = None  # the first update, and the times since then
        self._is_warm = False  # the first steps compile, connect, fill caches
        self._known = KnownStragglers()

    @property
    def found(self) -> list[Straggler]:
        """All of this run, in the order in which they were found."""
        return self._known.found

    def add(self, step: int, ranks: Sequence[RankTimes]) -> list[Straggler]:
        """Add the times up to update `step`; returns who is found now, one of another cause too."""
        first, self._step = self._step + 1, step
        if not self._is_warm or len(ranks) < 2:
            self._is_warm = True
            return []
        if self._open is not None:
            first, ranks = self._open[0], [a.plus(b) for a, b in zip(self._open[1], ranks, strict=True)]
        self._open = first, ranks
        if max(rank.total for rank in ranks) < WINDOW_SECONDS:
            return []
        self._windows.append(_Window.of(first, step, ranks))
        self._open = None
        return self._judge() if len(self._windows) >= FEWEST else []

    def _judge(self) -> list[Straggler]:
        seen: dict[int, Straggler] = {}
        is_slow = False
        for number, rule in enumerate(RULES):
            if len(self._windows) < rule.windows:
                continue
            windows = list(self._windows)[-rule.windows :]
            for rank, totals in _slow(windows, number):
                is_slow = True
                # Linux's counters come every two seconds; where there are none, there will be none later either.
                if rank not in seen and (totals[rank].pressure.wall > 0 or len(self._windows) == WINDOWS):
                    seen[rank] = self._rank(rank, totals, windows)
        return self._known.note([seen[rank] for rank in sorted(seen)] if is_slow else self._links(list(self._windows)))

    def _rank(self, rank: int, totals: Sequence[RankTimes], windows: Sequence[_Window]) -> Straggler:
        slow, rest = totals[rank], [times for number, times in enumerate(totals) if number != rank]
        others = Others(
            work=median(times.own for times in rest),
            data=median(times.data for times in rest),
            pressure=_typical([times.pressure for times in rest]),
            waited=_waited(totals, rank),
        )
        steps = windows[0].first, windows[-1].last
        return straggler_of(rank, self._host(rank), slow, others, self._known.cause(rank), steps)

    def _links(self, windows: Sequence[_Window]) -> list[Straggler]:
        """Where nobody is slow, and all wait in collectives while their connections to other hosts are in use."""
        if min(window.waits for window in windows) < LINK:
            return []
        totals = _totals(windows)
        waits = [rank.allreduce / max(rank.total, INSTANT) for rank in totals]
        busy = [rank.pressure.share("send_busy") for rank in totals]
        if max(busy) < BUSY:
            return []
        rank = busy.index(max(busy))
        is_alone = busy[rank] >= CLEARLY * median(share for number, share in enumerate(busy) if number != rank)
        if not is_alone and (len(windows) < WINDOWS or self._known.has_slow_link):
            return []  # whose it is may still be told: acknowledgements wait in the queue of a slow link, too
        whose = rank if is_alone else None
        steps = windows[0].first, windows[-1].last
        return [slow_link(whose, self._host(whose), totals[rank].pressure, mean(waits), steps)]

    def _host(self, rank: int | None) -> str:
        return self._hosts[rank] if rank is not None and rank < len(self._hosts) else ""


class Others(NamedTuple):
    """All ranks but one."""

    work: float  # the median of their own time
    data: float  # the median of their waits for data
    pressure: Pressure  # the median of each share, in a time of one second
    waited: float  # the share of their time in which they wait


def is_waited_for(slow: RankTimes, others: Others) -> bool:
    """Whether the others wait, and for this rank: not for a network beside which its own work takes no time."""
    return others.waited >= _WAITED and slow.own - others.work >= _EXPLAINED * others.waited * slow.total


def straggler_of(
    rank: int, host: str, slow: RankTimes, others: Others, before: Cause, steps: tuple[int, int]
) -> Straggler:
    """What is told of a slow rank. Args: `before`: why it was slow before; `steps`: the first and the last update."""
    cause = before
    if cause in ("unknown", "slow link"):  # the latter was found while no rank was slow itself
        excess = Excess(slow.total, slow.own - others.work, slow.data - others.data)
        cause = cause_of(excess, slow.pressure, others.pressure)
    slower, facts = slow.own / max(others.work, INSTANT) - 1, facts_of(cause, slow.pressure)
    return Straggler(rank, host, round(others.waited, 3), round(slower, 3), cause, facts, *steps)


def slow_link(rank: int | None, host: str, pressure: Pressure, waited: float, steps: tuple[int, int]) -> Straggler:
    """What is told of a link. Args: `rank`: whose it is, or None; `waited`: the share of their time that ranks wait."""
    return Straggler(rank, host, round(waited, 3), 0.0, "slow link", facts_of("slow link", pressure), *steps)


def _totals(windows: Sequence[_Window]) -> list[RankTimes]:
    """Of each rank."""
    return [reduce(RankTimes.plus, times) for times in zip(*(window.ranks for window in windows), strict=True)]


def _slow(windows: Sequence[_Window], number: int) -> list[tuple[int, list[RankTimes]]]:
    """The ranks that are slow by a rule, given by its number; each with the totals of all ranks."""
    counts = map(sum, zip(*(window.slower[number] for window in windows), strict=True))
    candidates = [rank for rank, count in enumerate(counts) if count >= RULES[number].most]
    if not candidates:
        return []
    totals = _totals(windows)
    slower = _Window.of(0, 0, totals).slower[number]
    return [(rank, totals) for rank in candidates if slower[rank] and _is_waited_for(totals, rank)]


def _is_waited_for(totals: Sequence[RankTimes], rank: int) -> bool:
    work = median(times.own for number, times in enumerate(totals) if number != rank)
    return is_waited_for(totals[rank], Others(work, 0.0, NOTHING, _waited(totals, rank)))


def _waited(totals: Sequence[RankTimes], rank: int) -> float:
    """The share of their time in which all but `rank` wait."""
    others = [times for number, times in enumerate(totals) if number != rank]
    return sum(times.allreduce for times in others) / max(sum(times.total for times in others), INSTANT)


def _typical(pressures: Sequence[Pressure]) -> Pressure:
    """The median of each share, in a time of one second."""
    shares = {name: median(pressure.share(name) for pressure in pressures) for name in COLUMNS if name != "wall"}
    return Pressure(wall=1.0, **shares)


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """For each value the median of all the others."""
    ordered = sorted(values)
    rest = len(values) - 1

    def of_others(value: float) -> float:
        gone = bisect_left(ordered, value)
        low, high = (place if place < gone else place + 1 for place in ((rest - 1) // 2, rest // 2))
        return (ordered[low] + ordered[high]) / 2

    return [of_others(value) for value in values]
