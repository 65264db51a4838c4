"""Where the time of each rank went: sums, however many lines there are."""

from contextlib import suppress
from typing import Any, Final

import numpy as np

from hvdtrain.history.rank_seconds import MOST_RANKS, MOST_SECONDS, Rows, Sums, parts_of, rows_of

_TOGETHER: Final = 4096  # rows that are added up at once


class RankTimes:
    """Sums of the seconds of each rank, by part; one `add` for each line of training."""

    def __init__(self) -> None:
        self._sums = Sums()
        self._waiting: list[list[Any]] = []  # lines with the same ranks and parts, which are added up together
        self._shape: tuple[int, tuple[str, ...]] = 0, ()

    def add_validation(self, ranks: Any) -> None:
        """Add a validation's list of seconds, one a rank; anything else is left out."""
        if isinstance(ranks, list) and 0 < len(ranks) <= MOST_RANKS:
            self._sums.add(rows_of([{"validation": seconds} for seconds in ranks]))

    def add(self, ranks: Any) -> None:
        """Add a line's list of {part: seconds}; anything else is left out."""
        if not isinstance(ranks, list) or not 0 < len(ranks) <= MOST_RANKS:
            return
        parts = parts_of(ranks)
        if parts is None:
            self._add_waiting()
            self._sums.add(rows_of(ranks))
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
                self._sums.add(Rows(self._shape[1], values.astype(np.float64)))
                return
        for ranks in lines:  # of another version, or damaged: each number by itself
            self._sums.add(rows_of(ranks))

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
