"""What virtual workers have measured since a line of metrics.jsonl, where a stop or a save lies before the next one.

A checkpoint carries it, so that the next line is about all updates of its interval, to the last bit, however often
training was stopped within it and on how many workers it went on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class NormTotals(NamedTuple):
    """Of the norms of reduced gradients over updates."""

    total: float
    peak: float
    updates: int

    @property
    def mean(self) -> float:
        return self.total / self.updates


def mean_and_peak(norms: NormTotals | None) -> tuple[float | None, float | None]:
    return (None, None) if norms is None else (norms.mean, norms.peak)


@dataclass(frozen=True)
class IntervalSums:
    """The same on all ranks.

    Attributes:
        measures: for each of the task's measures, the total and the samples that it is over, of each virtual worker.
        norms: None where norms were not asked for.
    """

    measures: Mapping[str, Sequence[tuple[float, float]]]
    norms: NormTotals | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "IntervalSums":
        """What `to_json` made of one."""
        measures = {name: [(total, samples) for total, samples in rows] for name, rows in fields["measures"].items()}
        return cls(measures, None if fields["norms"] is None else NormTotals(*fields["norms"]))

    def to_json(self) -> dict[str, Any]:
        return {"measures": {name: [*map(list, rows)] for name, rows in self.measures.items()}, "norms": self.norms}
