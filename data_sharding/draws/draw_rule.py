"""What a plan, a catalog and its proof need of a rule that draws records more or less often than once an epoch."""

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError

_COUNTED_TOGETHER: Final = 1 << 20
_MOST_DRAWS: Final = 1 << 40


class DrawRule(Protocol):
    """The draws of each epoch, numbered from 0: a function of the rule's fields, the number and the epoch.

    A plan shuffles the numbers of draws; each draw is used exactly once an epoch, and stands for one record. Neither
    the seed of a training nor its number of workers changes which records an epoch draws.
    """

    @property
    def length(self) -> int:
        """Draws of an epoch, at least 1."""

    @property
    def together(self) -> int:
        """So many draws with neighbouring numbers stay neighbours in a shuffled epoch."""

    def records(self, numbers: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Ids int64[...] of the records that the draws numbers int64[...] in [0, length) stand for."""

    def describe(self) -> Mapping[str, Any]:
        """All fields that are no arrays, as what JSON can hold, with the rule's name as "rule"."""

    @property
    def weights(self) -> NDArray[np.int64] | None:
        """int64[N], one for each record, where the rule has them."""


def planned_counts(rule: DrawRule, records: int, epoch: int) -> NDArray[np.int64]:
    """How often an epoch draws each of so many records, int64[records]."""
    counts = np.zeros(records, np.int64)
    for first in range(0, rule.length, _COUNTED_TOGETHER):
        numbers = np.arange(first, min(first + _COUNTED_TOGETHER, rule.length))
        counts += np.bincount(rule.records(numbers, epoch), minlength=records)
    return counts


def require_length(length: float) -> None:
    """Raises PlanError: an epoch would have more draws than it may."""
    if length > _MOST_DRAWS:
        raise PlanError(
            f"An epoch of {length if length < 1e300 else math.inf:,.15g} records was asked for.",
            f"It may have {_MOST_DRAWS:,}.",
            "draw fewer of them an epoch, and train more epochs; a mixture may have epoch=N.",
        )


def nothing_drawn(fact: str, hint: str) -> PlanError:
    """The error for a rule by which an epoch would have no record."""
    return PlanError(fact, "An epoch without a record cannot be planned.", hint)
