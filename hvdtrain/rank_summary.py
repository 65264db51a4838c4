"""What is said of a number that each rank has, where a list of all ranks would be too long: how it is spread, and who
has the most."""

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

Detail = Literal["auto", "ranks", "summary"]

FROM_RANKS: Final = 64
"""From so many ranks on, summaries take the place of lists, so that no cost grows with the number of ranks."""

NAMED: Final = 4
"""Ranks with the largest values, which a summary names."""


def summarizes(detail: Detail, ranks: int) -> bool:
    """Whether a job of so many ranks writes summaries where a smaller one writes a list of all ranks."""
    return detail == "summary" or (detail == "auto" and ranks >= FROM_RANKS)


class RankValue(NamedTuple):
    """The value of one rank."""

    rank: int
    value: float
    host: str = ""  # "" where it is not known


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Of the values of all ranks that have one. Where no rank has one, `count` is 0 and all numbers are NaN."""

    count: int  # ranks that have a value
    mean: float
    min: float
    p25: float
    median: float
    p75: float
    max: float
    largest: tuple[RankValue, ...] = ()  # `NAMED` ranks at most, the largest value first

    def as_json(self, digits: int | None = None, names: bool = True, counts: bool = True) -> dict[str, Any]:
        """As files have it. Args: `digits`: after the point; None: values are whole numbers. `names`: with the ranks
        that have the largest values; `counts`: with the number of ranks that have a value."""
        numbers = {name: _rounded(getattr(self, name), digits) for name in _NUMBERS}
        largest = [
            {"rank": rank, "value": _rounded(value, digits), **({"host": host} if host else {})}
            for rank, value, host in self.largest
        ]
        count = {"count": self.count} if counts else {}
        return {**count, **numbers, **({"largest": largest} if names else {})}


_NUMBERS: Final = tuple(field.name for field in fields(RankSummary) if field.name not in ("count", "largest"))


def _rounded(value: float, digits: int | None) -> float | None:
    if not math.isfinite(value):
        return None  # JSON has no NaN
    return round(value, digits)
