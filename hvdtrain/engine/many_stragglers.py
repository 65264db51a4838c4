"""Which rank keeps the others waiting, where there are too many ranks for a list: the rule of `slowness.stragglers`.

Each rank knows its own times only, and compares them with what is reduced over all ranks. Windows end, and collectives
are called, by numbers that all ranks share. So all ranks find the same. It differs from the rule for few ranks in
three ways: a window ends when the longest times of its readings add up to its length; the median is that of all ranks,
and not of the others; and medians are those of a histogram, within a few percent.
"""

from collections import deque
from collections.abc import Sequence
from functools import reduce
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.rank_reduction import reduce_ranks
from hvdtrain.measured import SummarizedSeconds
from hvdtrain.rank_summary import RankSummary
from hvdtrain.slowness.causes import COLUMNS, Pressure, Straggler
from hvdtrain.slowness.known_stragglers import KnownStragglers
from hvdtrain.slowness.stragglers import (
    BUSY,
    CLEARLY,
    FEWEST,
    INSTANT,
    LINK,
    RULES,
    WINDOW_SECONDS,
    WINDOWS,
    Others,
    RankTimes,
    is_waited_for,
    slow_link,
    straggler_of,
)

_SHARES: Final = tuple(name for name in COLUMNS if name != "wall")


class _Window(NamedTuple):
    """Some updates, one after the other."""

    first: int
    last: int
    own: RankTimes  # of this rank
    slower: Sequence[bool]  # for each rule, whether this rank needs longer than it allows
    waits: float  # the share of its time in which every rank waits, at least; the same on all ranks


class ManyStragglers:
    """Watches a run. Every rank adds its own times after each reading; all of them find the same.

    Args:
        hosts: of each rank, where they are known.
        start: updates done before the first times.
    """

    def __init__(self, comm: Communicator, hosts: Sequence[str] = (), start: int = 0) -> None:
        self._comm, self._hosts, self._step = comm, hosts, start
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)
        self._open: tuple[int, RankTimes, float] | None = None  # the first update, own times, the longest times
        self._is_warm = False  # the first steps compile, connect, fill caches
        self._known = KnownStragglers()

    @property
    def found(self) -> list[Straggler]:
        """All of this run, in the order in which they were found."""
        return self._known.found

    def add(self, step: int, own: RankTimes, summary: SummarizedSeconds) -> list[Straggler]:
        """Add the times up to update `step`; returns who is found now. Collective. Args: `summary`: of all ranks."""
        first, self._step = self._step + 1, step
        if not self._is_warm or self._comm.topology.size < 2:
            self._is_warm = True
            return []
        longest, is_one_reading = summary.step.max, self._open is None
        if self._open is not None:
            first, own, longest = self._open[0], self._open[1].plus(own), self._open[2] + longest
        self._open = first, own, longest
        if longest < WINDOW_SECONDS:
            return []
        self._open = None
        work, waits = (summary.work, summary.waits) if is_one_reading else self._spread(own)
        slower = [own.own >= (1 + rule.slower) * work.median for rule in RULES]
        self._windows.append(_Window(first, step, own, slower, waits.min))
        return self._judge() if len(self._windows) >= FEWEST else []

    def _spread(self, own: RankTimes) -> list[RankSummary]:
        """Of a window of several readings: ranks' own time, and the share of their time in which they wait."""
        waits = own.allreduce / max(own.total, INSTANT)
        return reduce_ranks(self._comm, [own.own, waits], "hvdtrain.slowness.window").summaries

    def _judge(self) -> list[Straggler]:
        asked = [len(self._windows) >= rule.windows for rule in RULES]
        may_be_slow = [self._may_be_slow(number) for number in range(len(RULES))]
        counts = self._comm.allreduce(np.array(may_be_slow, np.int64), "hvdtrain.slowness.candidates")
        seen: dict[int, Straggler] = {}
        is_slow = False
        for number in compress(range(len(RULES)), asked):
            if counts[number]:
                found = self._slow(number, may_be_slow[number])
                is_slow = is_slow or bool(found)
                for rank, straggler in found.items():
                    if straggler is not None:
                        seen.setdefault(rank, straggler)
        return self._known.note([seen[rank] for rank in sorted(seen)] if is_slow else self._links())

    def _may_be_slow(self, number: int) -> bool:
        rule = RULES[number]
        windows = list(self._windows)[-rule.windows :]
        return len(windows) == rule.windows and sum(window.slower[number] for window in windows) >= rule.most

    def _slow(self, number: int, may_be_slow: bool) -> dict[int, Straggler | None]:
        """The ranks that are slow by a rule, given by its number; None of one whose cause may still be told.

        Collective. `may_be_slow`: whether this rank's windows say so of it.
        """
        rule, windows = RULES[number], list(self._windows)[-RULES[number].windows :]
        own = _total(windows)
        reduced = reduce_ranks(
            self._comm,
            [own.own, own.data, *(own.pressure.share(name) for name in _SHARES)],
            f"hvdtrain.slowness.totals.{number}",
            totals=[own.allreduce, own.total],
        )
        (allreduce, total), (work, data, *shares) = reduced.totals.tolist(), reduced.summaries
        typical = Pressure(wall=1.0, **{name: share.median for name, share in zip(_SHARES, shares, strict=True)})

        def others(of: RankTimes) -> Others:
            return Others(
                work.median, data.median, typical, (allreduce - of.allreduce) / max(total - of.total, INSTANT)
            )

        is_slow = may_be_slow and own.own >= (1 + rule.slower) * work.median and is_waited_for(own, others(own))
        steps = windows[0].first, windows[-1].last
        found: dict[int, Straggler | None] = {}
        for rank, slow in self._gathered(own, is_slow, f"hvdtrain.slowness.slow.{number}"):
            # Linux's counters come every two seconds; where there are none, there will be none later either.
            is_told = slow.pressure.wall > 0 or len(self._windows) == WINDOWS
            cause = self._known.cause(rank)
            found[rank] = straggler_of(rank, self._host(rank), slow, others(slow), cause, steps) if is_told else None
        return found

    def _gathered(self, own: RankTimes, is_slow: bool, operation: str) -> list[tuple[int, RankTimes]]:
        """The times of the slow ranks only. Collective."""
        row = [float(self._comm.topology.rank), own.data, own.compute, own.allreduce, *own.pressure]
        rows: NDArray[np.float64] = np.array([row], np.float64)[: int(is_slow)]
        gathered = self._comm.allgather(rows, operation).tolist()
        return [
            (int(rank), RankTimes(data, compute, allreduce, Pressure(*pressure)))
            for rank, data, compute, allreduce, *pressure in gathered
        ]

    def _links(self) -> list[Straggler]:
        """Where nobody is slow, and all wait in collectives while their connections are in use. Collective."""
        windows = list(self._windows)
        if min(window.waits for window in windows) < LINK:
            return []
        own = _total(windows)
        waits, share = own.allreduce / max(own.total, INSTANT), own.pressure.share("send_busy")
        waiting, busy = reduce_ranks(self._comm, [waits, share], "hvdtrain.slowness.links", named=[1]).summaries
        if busy.max < BUSY:
            return []
        rank = busy.largest[0].rank
        is_alone = busy.max >= CLEARLY * busy.median
        if not is_alone and (len(windows) < WINDOWS or self._known.has_slow_link):
            return []  # whose it is may still be told: acknowledgements wait in the queue of a slow link, too
        pressure = self._comm.broadcast(np.array(own.pressure, np.float64), "hvdtrain.slowness.link", rank)
        whose = rank if is_alone else None
        steps = windows[0].first, windows[-1].last
        return [slow_link(whose, self._host(whose), Pressure(*pressure.tolist()), waiting.mean, steps)]

    def _host(self, rank: int | None) -> str:
        return self._hosts[rank] if rank is not None and rank < len(self._hosts) else ""


def _total(windows: Sequence[_Window]) -> RankTimes:
    """Of this rank."""
    return reduce(RankTimes.plus, (window.own for window in windows))
