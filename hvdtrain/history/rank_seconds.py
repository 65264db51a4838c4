"""The seconds of ranks as matrices: parsed from lines, added up, divided into parts that do not overlap."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdtrain.history.values import finite

Seconds = Mapping[str, float]

MOST_RANKS: Final = 2**16
MOST_SECONDS: Final = 1e15
"""What is more is no time."""

_MOST_PARTS, _LONGEST_NAME = 32, 40

INSIDE: Final = ("host_to_device", "forward", "backward", "optimizer")
"""Parts of "compute", where a step can be divided."""

REST: Final = "other compute"
"""What is left of "compute" then."""

_DISJOINT: Final = ("data", *INSIDE, "compute", REST, "allreduce", "checkpoint", "validation")
WORK: Final = frozenset(("data", "compute"))
"""What a rank does itself in a step, without waiting for others."""


def disjoint(seconds: Seconds) -> dict[str, float]:
    """The parts that do not overlap and make up all of the time: "compute" is divided where its parts are known."""
    found = {part: seconds[part] for part in _DISJOINT if part in seconds}
    if any(part in found for part in INSIDE) and "compute" in found:
        found[REST] = max(0.0, found.pop("compute") - sum(found.get(part, 0.0) for part in INSIDE))
    return {part: found[part] for part in _DISJOINT if part in found}


def own_work(seconds: Seconds) -> float:
    """Seconds of a rank's own work."""
    return sum(seconds.get(part, 0.0) for part in WORK)


class Rows(NamedTuple):
    """The seconds of some lines: parts, and float64[lines, ranks, parts], NaN where a rank has no such part."""

    parts: tuple[str, ...]
    values: NDArray[np.float64]


class Sums:
    """Adds up rows of any number of ranks, in a matrix with a column for each part.

    Attributes:
        columns: part → column, in the order in which they came.
    """

    def __init__(self) -> None:
        self.columns: dict[str, int] = {}
        self._totals = np.full((0, _MOST_PARTS), np.nan)

    def add(self, rows: Rows) -> None:
        """Add up all lines."""
        values = rows.values.sum(axis=0)
        missing = len(values) - len(self._totals)
        if missing > 0:
            self._totals = np.concatenate([self._totals, np.full((missing, _MOST_PARTS), np.nan)])
        known = [n for n, part in enumerate(rows.parts) if self._column(part) is not None]
        places = [self.columns[rows.parts[n]] for n in known]
        values = values[:, known]
        before = self._totals[: len(values), places]
        self._totals[: len(values), places] = np.where(np.isnan(before), values, before + np.nan_to_num(values))

    def by_rank(self) -> list[dict[str, float]]:
        """Seconds by part, for each rank; without parts that it never had."""
        names = list(self.columns)
        return [
            {name: value for name, value in zip(names, row, strict=False) if value == value}  # which NaN is not
            for row in self._totals.tolist()
        ]

    def _column(self, part: str) -> int | None:
        if part not in self.columns and len(self.columns) < _MOST_PARTS and len(part) <= _LONGEST_NAME:
            self.columns[part] = len(self.columns)
        return self.columns.get(part)


def parts_of(ranks: list[Any]) -> tuple[str, ...] | None:
    """The parts, where all ranks have the same in the same order."""
    if not all(isinstance(rank, dict) for rank in ranks):
        return None
    parts = tuple(ranks[0])
    return parts if all(tuple(rank) == parts for rank in ranks) else None


def rows_of(ranks: list[Any]) -> Rows:
    """The numbers in a line's list of ranks."""
    found = [_numbers(rank) for rank in ranks]
    parts = tuple(dict.fromkeys(part for rank in found for part in rank))
    values = np.array([[rank.get(part, np.nan) for part in parts] for rank in found])
    return Rows(parts, values.reshape(1, len(found), len(parts)))


def _numbers(rank: Any) -> dict[str, float]:
    if not isinstance(rank, dict):
        return {}
    found = ((part, finite(value)) for part, value in rank.items())
    return {part: value for part, value in found if value is not None and 0 <= value < MOST_SECONDS}
