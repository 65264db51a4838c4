"""Where the time of each rank went, and which ranks keep the others waiting: sums, however many lines there are."""

import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.history.rank_seconds import (
    INSIDE,
    MOST_RANKS,
    MOST_SECONDS,
    REST,
    WORK,
    Rows,
    Sums,
    disjoint,
    parts_of,
    rows_of,
)

_TOGETHER: Final = 4096  # rows that are added up at once

_FEWEST_LINES: Final = 10
_USUALLY: Final = 0.8  # of the lines
_CLEARLY: Final = 0.1  # of what the others take
_STANDARD_ERRORS: Final = 4.0
"""A rank is called slow if its own work usually takes longer than that of the others, by a tenth on average, and by
more than chance does where lines are independent."""


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


class RankTimes:
    """Sums of the seconds of each rank, by part; one `add` for each line of training."""

    def __init__(self) -> None:
        self._sums = Sums()
        self._recent: _Comparison | None = None
        self._waiting: list[list[Any]] = []  # lines with the same ranks and parts, which are added up together
        self._shape: tuple[int, tuple[str, ...]] = 0, ()

    def add_validation(self, ranks: Any) -> None:
        """Add a validation's list of seconds, one a rank; anything else is left out."""
        if isinstance(ranks, list) and 0 < len(ranks) <= MOST_RANKS:
            self._sums.add(rows_of([{"validation": seconds} for seconds in ranks]))

    def add(self, ranks: Any, first_of_start: bool) -> None:
        """Add a line's list of {part: seconds}; anything else is left out.

        Args:
            first_of_start: its times are those of a start (compilation), and say nothing of how fast a rank is.
        """
        if not isinstance(ranks, list) or not 0 < len(ranks) <= MOST_RANKS:
            return
        parts = parts_of(ranks)
        if first_of_start or parts is None:
            self._add_waiting()
            self._add(rows_of(ranks), compare=not first_of_start)
            return
        if self._shape != (len(ranks), parts) or len(self._waiting) * len(ranks) >= _TOGETHER:
            self._add_waiting()
            self._shape = len(ranks), parts
        self._waiting.append(ranks)

    def _add_waiting(self) -> None:
        lines, self._waiting = self._waiting, []
        if not lines:
            return
        with suppress(ValueError):  # lists of different lengths
            values = np.array([[list(rank.values()) for rank in ranks] for ranks in lines])
            is_of_numbers = values.ndim == 3 and values.dtype.kind in "fiu"
            if is_of_numbers and (values >= 0).all() and (values < MOST_SECONDS).all():
                self._add(Rows(self._shape[1], values.astype(np.float64)))
                return
        for ranks in lines:  # of another version, or damaged: each number by itself
            self._add(rows_of(ranks))

    def _add(self, rows: Rows, compare: bool = True) -> None:
        self._sums.add(rows)
        size = rows.values.shape[1]
        if size > 1 and compare:
            if self._recent is None or self._recent.size != size:
                self._recent = _Comparison(size)
            self._recent.add(rows)

    @property
    def sums(self) -> list[dict[str, float]]:
        """Seconds by part, for each rank."""
        self._add_waiting()
        return self._sums.by_rank()

    @property
    def parts(self) -> list[str]:
        """All parts, in the order in which lines have them."""
        self._add_waiting()
        return list(self._sums.columns)

    def slow(self) -> list[SlowRank]:
        """Ranks that are slow beyond what chance does, the slowest first, since the number of ranks last changed."""
        self._add_waiting()
        return [] if self._recent is None else sorted(self._recent.slow(), key=lambda rank: -rank.excess)

    @property
    def can_tell(self) -> bool:
        """Whether there are lines enough of several ranks to call one slow."""
        self._add_waiting()
        return self._recent is not None and self._recent.lines >= _FEWEST_LINES


class _Comparison:
    """Sums over lines of how much longer each rank's own work took than the others' mean."""

    def __init__(self, size: int) -> None:
        self.size, self.lines = size, 0
        self._own = np.zeros(size)
        self._excess, self._squares = np.zeros(size), np.zeros(size)
        self._longer = np.zeros(size, np.int64)
        self._sums = Sums()

    def add(self, rows: Rows) -> None:
        lines = len(rows.values)
        own = np.zeros((lines, self.size))
        for part in WORK.intersection(rows.parts):
            own += np.nan_to_num(rows.values[:, :, rows.parts.index(part)])
        excess = own - (own.sum(axis=1, keepdims=True) - own) / (self.size - 1)
        self.lines += lines
        self._own += own.sum(axis=0)
        self._excess += excess.sum(axis=0)
        self._squares += (excess**2).sum(axis=0)
        self._longer += (excess > 0).sum(axis=0)
        self._sums.add(rows)

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
        divided = [disjoint(total) for total in self._sums.by_rank()]

        def excess(part: str) -> float:
            values = [total.get(part, 0.0) for total in divided]
            return values[rank] - statistics.fmean(values[:rank] + values[rank + 1 :])

        parts = (part for part in ("data", "compute", *INSIDE, REST) if part in divided[rank])
        return max(parts, key=excess, default="")
