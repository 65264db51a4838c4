"""Where the time of each rank went, and which ranks keep the others waiting: sums, however many lines there are."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.history.values import finite

Seconds = Mapping[str, float]

_MOST_RANKS, _MOST_PARTS = 2**16, 32

_FEWEST_LINES: Final = 10
_USUALLY: Final = 0.8  # of the lines
_CLEARLY: Final = 0.1  # of what the others take
_STANDARD_ERRORS: Final = 4.0
"""A rank is called slow if its own work usually takes longer than that of the others, by a tenth on average, and by
more than chance does where lines are independent."""


INSIDE: Final = ("host_to_device", "forward", "backward", "optimizer")
"""Parts of "compute", where a step can be divided."""

_REST: Final = "other compute"
_DISJOINT: Final = ("data", *INSIDE, "compute", _REST, "allreduce", "checkpoint", "validation")
_WORK: Final = frozenset(("data", "compute"))


def disjoint(seconds: Seconds) -> dict[str, float]:
    """The parts that do not overlap and make up all of the time: "compute" is divided where its parts are known."""
    found = {part: seconds[part] for part in _DISJOINT if part in seconds}
    if any(part in found for part in INSIDE) and "compute" in found:
        found[_REST] = max(0.0, found.pop("compute") - sum(found.get(part, 0.0) for part in INSIDE))
    return {part: found[part] for part in _DISJOINT if part in found}


def own_work(seconds: Seconds) -> float:
    """What a rank does itself in a step, without waiting for others."""
    return sum(seconds.get(part, 0.0) for part in _WORK)


@dataclass(frozen=True)
class SlowRank:
    """A rank whose own work takes longer than that of the others.

    Attributes:
        excess: by which share of what the others take on average.
        part: of the time in which most of the difference lies.
    """

    rank: int
    excess: float
    part: str


@dataclass
class RankTimes:
    """Sums of the seconds of each rank, by part; one `add` for each line of training.

    Attributes:
        sums: by rank.
    """

    sums: list[dict[str, float]] = field(default_factory=list)
    _recent: "_Comparison | None" = None

    def add_validation(self, ranks: Any) -> None:
        """Add a validation's list of seconds, one a rank; anything else is left out."""
        if isinstance(ranks, list) and len(ranks) <= _MOST_RANKS:
            self._add([_seconds({"validation": seconds}) for seconds in ranks])

    def add(self, ranks: Any, first_of_start: bool) -> None:
        """Add a line's list of {part: seconds}; anything else is left out.

        Args:
            first_of_start: its times are those of a start (compilation), and say nothing of how fast a rank is.
        """
        if not isinstance(ranks, list) or not 0 < len(ranks) <= _MOST_RANKS:
            return
        rows = [_seconds(rank) for rank in ranks]
        self._add(rows)
        if len(rows) > 1 and not first_of_start:
            if self._recent is None or self._recent.size != len(rows):
                self._recent = _Comparison(len(rows))
            self._recent.add(rows)

    def _add(self, rows: Sequence[Seconds]) -> None:
        while len(self.sums) < len(rows):
            self.sums.append({})
        for total, row in zip(self.sums, rows, strict=False):
            _add_to(total, row)

    @property
    def parts(self) -> list[str]:
        """All parts, in the order in which a line has them."""
        return list(dict.fromkeys(part for total in self.sums for part in total))

    def slow(self) -> list[SlowRank]:
        """Ranks that are slow beyond what chance does, the slowest first, since the number of ranks last changed."""
        return [] if self._recent is None else sorted(self._recent.slow(), key=lambda rank: -rank.excess)

    @property
    def can_tell(self) -> bool:
        """Whether there are lines enough of several ranks to call one slow."""
        return self._recent is not None and self._recent.lines >= _FEWEST_LINES


class _Comparison:
    """Sums over lines of how much longer each rank's own work took than the others' mean."""

    def __init__(self, size: int) -> None:
        self.size, self.lines = size, 0
        self._own = np.zeros(size)
        self._excess, self._squares = np.zeros(size), np.zeros(size)
        self._longer = np.zeros(size, np.int64)
        self._parts: list[dict[str, float]] = [{} for _ in range(size)]

    def add(self, rows: Sequence[Seconds]) -> None:
        own = np.array([own_work(row) for row in rows])
        excess = own - (own.sum() - own) / (self.size - 1)
        self.lines += 1
        self._own += own
        self._excess += excess
        self._squares += excess**2
        self._longer += excess > 0
        for total, row in zip(self._parts, rows, strict=True):
            _add_to(total, row)

    def slow(self) -> Iterator[SlowRank]:
        if self.lines < _FEWEST_LINES:
            return
        mean = self._excess / self.lines
        error: NDArray[np.float64] = np.sqrt(np.maximum(self._squares / self.lines - mean**2, 0) / (self.lines - 1))
        others = (self._own.sum() - self._own) / (self.size - 1) / self.lines
        is_slow = (self._longer >= _USUALLY * self.lines) & (mean > _CLEARLY * others)
        for rank in np.flatnonzero(is_slow & (mean > _STANDARD_ERRORS * error)).tolist():
            share = float(mean[rank] / others[rank]) if others[rank] > 0 else float("inf")
            yield SlowRank(rank, share, self._cause(rank))

    def _cause(self, rank: int) -> str:
        """The part in which this rank takes most more than the others do."""

        divided = [disjoint(total) for total in self._parts]

        def excess(part: str) -> float:
            values = [total.get(part, 0.0) for total in divided]
            return values[rank] - statistics.fmean(values[:rank] + values[rank + 1 :])

        parts = (part for part in ("data", "compute", *INSIDE, _REST) if part in divided[rank])
        return max(parts, key=excess, default="")


def _add_to(total: dict[str, float], row: Seconds) -> None:
    for part, value in row.items():
        if part in total or len(total) < _MOST_PARTS:
            total[part] = total.get(part, 0.0) + value


def _seconds(rank: Any) -> dict[str, float]:
    if not isinstance(rank, dict):
        return {}
    found = {part[:40]: finite(value) for part, value in rank.items()}
    return {part: value for part, value in found.items() if value is not None and value >= 0}
