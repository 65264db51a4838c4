"""Which rank keeps the others waiting, beyond noise: from the times of all ranks, so that each rank finds the same one.

A rank's own time is what it would need without the others: its steps without the wait for their gradients. Times are
added up in windows, because those of a few small steps differ by chance. A rank is named if its own time is longer by
`SLOWER` than the median of the others', in most of the last windows and in all of them together, and if the others do
wait.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from statistics import mean, median
from typing import Final, NamedTuple

from hvdtrain.slowness.causes import Cause, Excess, cause_of, facts_of
from hvdtrain.slowness.pressure import COLUMNS, NOTHING, Pressure
from hvdtrain.slowness.straggler import Straggler

SLOWER: Final = 0.15
"""By this share a straggler's own time is longer than the median of the others', at least."""

WINDOW_SECONDS: Final = 0.5
"""Of the slowest rank, at least, before a window is looked at."""

_WINDOWS, _FEWEST = 8, 4  # windows that are looked at, and without which nobody is named
_MOST: Final = 0.75  # of the windows in which a straggler is slower
_WAITED: Final = 0.05  # share of their time in which the others wait, at least
_LINK: Final = 0.3  # share of its time in which every rank waits, where the network is the cause
_BUSY: Final = 0.2  # share of the time in which a slow link is being used, at least
_INSTANT: Final = 1e-9  # seconds, by which may be divided


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
        times = (a + b for a, b in zip(self[:3], other[:3], strict=True))
        if other.pressure is NOTHING:
            return RankTimes(*times, self.pressure)
        return RankTimes(*times, self.pressure + other.pressure)


class _Window(NamedTuple):
    first: int
    last: int
    ranks: Sequence[RankTimes]


class Stragglers:
    """Watches a run. All ranks add the same times, so all of them find the same.

    Args:
        hosts: of each rank, where they are known.
        start: updates done before the first times.
    """

    def __init__(self, hosts: Sequence[str] = (), start: int = 0) -> None:
        self._hosts, self._step = hosts, start
        self._windows: deque[_Window] = deque(maxlen=_WINDOWS)
        self._open: _Window | None = None
        self._is_warm = False  # the first steps compile, connect, fill caches
        self._found: dict[tuple[int | None, Cause], Straggler] = {}
        self._causes: dict[int | None, Cause] = {}  # of those that are slow now

    @property
    def found(self) -> list[Straggler]:
        """All of this run, in the order in which they were found."""
        return list(self._found.values())

    def add(self, step: int, ranks: Sequence[RankTimes]) -> list[Straggler]:
        """Add the times up to update `step`; returns who is found now, one of another cause too."""
        first, self._step = self._step + 1, step
        if not self._is_warm or len(ranks) < 2:
            self._is_warm = True
            return []
        if self._open is not None:
            first, ranks = self._open.first, [a.plus(b) for a, b in zip(self._open.ranks, ranks, strict=True)]
        self._open = _Window(first, step, ranks)
        if max(rank.total for rank in ranks) < WINDOW_SECONDS:
            return []
        self._windows.append(self._open)
        self._open = None
        return self._judge() if len(self._windows) >= _FEWEST else []

    def _judge(self) -> list[Straggler]:
        totals = [reduce(RankTimes.plus, times) for times in zip(*(w.ranks for w in self._windows), strict=True)]
        others = _medians_of_others([rank.own for rank in totals])
        slow = [
            rank
            for rank in self._slow_in_most()
            if totals[rank].own >= (1 + SLOWER) * others[rank] and _waited(totals, rank) >= _WAITED
        ]
        if slow:
            seen = [self._rank(rank, totals, others[rank]) for rank in slow if self._may_explain(totals[rank])]
        else:
            seen = self._links(totals)
        return self._note(seen)

    def _slow_in_most(self) -> list[int]:
        counts = [0] * len(self._windows[0].ranks)
        for window in self._windows:
            own = [rank.own for rank in window.ranks]
            for rank, others in enumerate(_medians_of_others(own)):
                counts[rank] += own[rank] >= (1 + SLOWER) * others
        return [rank for rank, count in enumerate(counts) if count >= _MOST * len(self._windows)]

    def _may_explain(self, times: RankTimes) -> bool:
        """Linux's counters come every two seconds; where there are none, there will be none later either."""
        return times.pressure.wall > 0 or len(self._windows) == _WINDOWS

    def _rank(self, rank: int, totals: Sequence[RankTimes], others: float) -> Straggler:
        own, rest = totals[rank], [times for number, times in enumerate(totals) if number != rank]
        excess = Excess(own.total, own.own - others, own.data - median(times.data for times in rest))
        cause = self._causes.get(rank, "unknown")
        if cause == "unknown":
            cause = cause_of(excess, own.pressure, _typical([times.pressure for times in rest]))
        return self._straggler(rank, own, _waited(totals, rank), own.own / max(others, _INSTANT) - 1, cause)

    def _links(self, totals: Sequence[RankTimes]) -> list[Straggler]:
        """Where nobody is slow, and all wait in collectives while their connections to other hosts are in use."""
        waits = [rank.allreduce / max(rank.total, _INSTANT) for rank in totals]
        busy = [rank.pressure.share("send_busy") for rank in totals]
        if min(waits) < _LINK or max(busy) < _BUSY:
            return []
        rank = busy.index(max(busy))
        is_alone = busy[rank] >= 2 * median(share for number, share in enumerate(busy) if number != rank)
        return [self._straggler(rank if is_alone else None, totals[rank], mean(waits), 0.0, "slow link")]

    def _straggler(self, rank: int | None, own: RankTimes, waited: float, slower: float, cause: Cause) -> Straggler:
        host = self._hosts[rank] if rank is not None and rank < len(self._hosts) else ""
        steps = self._windows[0].first, self._windows[-1].last
        return Straggler(rank, host, round(waited, 3), round(slower, 3), cause, facts_of(cause, own.pressure), *steps)

    def _note(self, seen: Sequence[Straggler]) -> list[Straggler]:
        """Remember who is slow now; returns those that were not known."""
        news = []
        for straggler in seen:
            rank, cause = straggler.rank, straggler.cause
            guess: tuple[int | None, Cause] = (rank, "unknown")
            if cause != "unknown" and self._causes.get(rank) == "unknown":
                straggler = replace(straggler, since_step=self._found.pop(guess).since_step)
            before = self._found.get((rank, cause))
            if before is None:
                news.append(straggler)
            else:
                straggler = replace(straggler, since_step=before.since_step)
            self._found[rank, cause] = straggler
        self._causes = {straggler.rank: straggler.cause for straggler in seen}
        return news


def _waited(totals: Sequence[RankTimes], rank: int) -> float:
    """The share of their time in which all but `rank` wait."""
    others = [times for number, times in enumerate(totals) if number != rank]
    return sum(times.allreduce for times in others) / max(sum(times.total for times in others), _INSTANT)


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
