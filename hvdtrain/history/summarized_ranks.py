"""Where the time of ranks went, from lines of metrics that summarize all ranks: sums over lines, in bounded memory.

The sum of the medians of many lines is not the median of the ranks' sums, which no line tells; it is what a typical
rank took. So each number here is the sum over lines of one number of the lines' summaries.
"""

from dataclasses import dataclass
from typing import Any, Final

from hvdtrain.history.reading import finite, mapping, text, whole

SPREAD: Final = ("mean", "min", "p25", "median", "p75", "max")
"""Of each summary, in the order in which people read them."""

_MOST_PARTS, _MOST_NAMED, _LONGEST_NAME = 32, 4096, 255


@dataclass
class Named:
    """A rank whose own work was among the longest, so that others waited for it."""

    rank: int
    host: str  # "" where it is not known
    lines: int = 0  # in how many it was among the largest
    longest: int = 0  # in how many it was the largest


class SummarizedTimes:
    """Adds up the summaries of lines of training and of validation."""

    def __init__(self) -> None:
        self.ranks = 0  # the most that a line has told of
        self.lines = 0  # of training
        self.parts: dict[str, dict[str, float]] = {}  # of each part: the sum over lines of each number of `SPREAD`
        self._named: dict[int, Named] = {}

    def add(self, seconds: Any) -> None:
        """Add the "seconds" of a line of training; anything but a summary is left out."""
        if not isinstance(seconds, dict):
            return
        self.lines += 1
        self.ranks = max(self.ranks, whole(seconds, "ranks") or 0)
        for part in mapping(seconds, "parts"):
            self._add_part(part, mapping(mapping(seconds, "parts"), part))
        largest = mapping(seconds, "work").get("largest")
        for place, each in enumerate(largest if isinstance(largest, list) else []):
            if isinstance(each, dict):
                self._note(each, is_longest=place == 0)

    def add_validation(self, seconds: Any) -> None:
        """Add the "rank_seconds" of a line of validation; anything but a summary is left out."""
        if isinstance(seconds, dict):
            self._add_part("validation", seconds)

    def most_often(self, count: int) -> list[Named]:
        """The ranks that others waited for most often, at most so many."""
        return sorted(self._named.values(), key=lambda each: (-each.lines, -each.longest, each.rank))[:count]

    def _add_part(self, part: str, summary: Any) -> None:
        if len(part) > _LONGEST_NAME or (part not in self.parts and len(self.parts) == _MOST_PARTS):
            return
        sums = self.parts.setdefault(part, dict.fromkeys(SPREAD, 0.0))
        for name in SPREAD:
            sums[name] += max(0.0, finite(summary.get(name)) or 0.0)

    def _note(self, each: dict[str, Any], is_longest: bool) -> None:
        rank = whole(each, "rank")
        if rank is None or (rank not in self._named and len(self._named) == _MOST_NAMED):
            return
        named = self._named.setdefault(rank, Named(rank, text(each, "host")[:_LONGEST_NAME]))
        named.lines += 1
        named.longest += is_longest
