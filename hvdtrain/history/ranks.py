"""Where the time of each rank went: sums, however many lines there are, and their parts that do not overlap."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.history.reading import finite
from hvdtrain.measured import DISJOINT, INSIDE, REST, WORK

_MOST_RANKS: Final = 2**16
_MOST_SECONDS: Final = 1e15  # what is more is not a time
_MOST_PARTS, _LONGEST_NAME = 32, 40
_TOGETHER: Final = 4096  # rows that are added up at once


def disjoint(seconds: Mapping[str, float]) -> dict[str, float]:
    """The parts that do not overlap and make up all of the time: "compute" is divided where its parts are known."""
    parts = {part: seconds[part] for part in DISJOINT if part in seconds}
    if any(part in parts for part in INSIDE) and "compute" in parts:
        parts[REST] = max(0.0, parts.pop("compute") - sum(parts.get(part, 0.0) for part in INSIDE))
    return {part: parts[part] for part in DISJOINT if part in parts}


def work_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of a rank's own work."""
    return sum(seconds.get(part, 0.0) for part in WORK)


class RankTimes:
    """Sums of the seconds of each rank, by part; one `add` for each line of training."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}  # of each part, in the order in which they came
        self._totals = np.full((0, _MOST_PARTS), np.nan)  # a row for each rank; NaN: it has no such part
        self._waiting: list[list[Any]] = []  # lines with the same ranks and parts, which are added up together
        self._shape: tuple[int, tuple[str, ...]] = 0, ()

    def add_validation(self, ranks: Any) -> None:
        """Add a validation's list of seconds, one a rank; anything else is left out."""
        if isinstance(ranks, list) and 0 < len(ranks) <= _MOST_RANKS:
            self._add_each([{"validation": seconds} for seconds in ranks])

    def add(self, ranks: Any) -> None:
        """Add a line's list of {part: seconds}; anything else is left out."""
        if not isinstance(ranks, list) or not 0 < len(ranks) <= _MOST_RANKS:
            return
        parts = _common_parts(ranks)
        if parts is None:
            self._add_waiting()
            self._add_each(ranks)
            return
        if self._shape != (len(ranks), parts) or len(self._waiting) * len(ranks) >= _TOGETHER:
            self._add_waiting()
            self._shape = len(ranks), parts
        self._waiting.append(ranks)

    @property
    def sums(self) -> list[dict[str, float]]:
        """Seconds by part, for each rank; without parts that it never had."""
        self._add_waiting()
        return [
            {name: value for name, value in zip(self._columns, row, strict=False) if value == value}  # which NaN is not
            for row in self._totals.tolist()
        ]

    @property
    def parts(self) -> list[str]:
        """All parts, in the order in which lines have them."""
        self._add_waiting()
        return list(self._columns)

    def _add_waiting(self) -> None:
        lines, self._waiting = self._waiting, []
        if not lines:
            return
        with suppress(ValueError):  # lists of different lengths
            values = np.array([[list(rank.values()) for rank in ranks] for ranks in lines])
            is_of_numbers = values.ndim == 3 and values.dtype.kind in "fiu"
            if is_of_numbers and (values >= 0).all() and (values < _MOST_SECONDS).all():
                self._add_up(self._shape[1], values.astype(np.float64).sum(axis=0))
                return
        for ranks in lines:  # of another version, or damaged: each number by itself
            self._add_each(ranks)

    def _add_each(self, ranks: Sequence[Any]) -> None:
        numbers = [_numbers(rank) for rank in ranks]
        parts = tuple(dict.fromkeys(part for rank in numbers for part in rank))
        values = np.array([[rank.get(part, np.nan) for part in parts] for rank in numbers])
        self._add_up(parts, values.reshape(len(numbers), len(parts)))

    def _add_up(self, parts: Sequence[str], values: NDArray[np.float64]) -> None:
        """Add a matrix of seconds, [ranks, parts], NaN where a rank has no such part."""
        missing = len(values) - len(self._totals)
        if missing > 0:
            self._totals = np.concatenate([self._totals, np.full((missing, _MOST_PARTS), np.nan)])
        known = [number for number, part in enumerate(parts) if self._has_column(part)]
        places = [self._columns[parts[number]] for number in known]
        before, values = self._totals[: len(values), places], values[:, known]
        self._totals[: len(values), places] = np.where(np.isnan(before), values, before + np.nan_to_num(values))

    def _has_column(self, part: str) -> bool:
        if part not in self._columns and len(self._columns) < _MOST_PARTS and len(part) <= _LONGEST_NAME:
            self._columns[part] = len(self._columns)
        return part in self._columns


def _common_parts(ranks: Sequence[Any]) -> tuple[str, ...] | None:
    """The parts, where all ranks have the same in the same order."""
    if not all(isinstance(rank, dict) for rank in ranks):
        return None
    parts = tuple(ranks[0])
    return parts if all(tuple(rank) == parts for rank in ranks) else None


def _numbers(rank: Any) -> dict[str, float]:
    if not isinstance(rank, dict):
        return {}
    numbers = ((part, finite(value)) for part, value in rank.items())
    return {part: value for part, value in numbers if value is not None and 0 <= value < _MOST_SECONDS}
