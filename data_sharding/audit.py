"""Proof that an epoch read every record exactly once."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError


class CoverageAudit:
    """Counts how often each record was read with a weight above 0.

    Counts are int32, not bits: they can be summed by an allreduce over ranks and still tell one reading from two.
    """

    def __init__(self, num_records: int) -> None:
        if num_records < 1:
            raise PlanError(
                f"An audit of {num_records} records was asked for.", "There is nothing to audit.", "check the data."
            )
        self._counts = np.zeros(num_records, np.int32)

    @classmethod
    def from_array(cls, counts: NDArray[np.int32]) -> Self:
        """An audit with counts int32[N], such as the sum of all ranks' `to_array()`. The array is copied."""
        audit = cls(len(counts))
        audit.merge(counts)
        return audit

    def to_array(self) -> NDArray[np.int32]:
        """A copy of the counts, int32[N]."""
        return self._counts.copy()

    def add(self, ids: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        """Count the records ids int64[k] whose weights float32[k] are above 0.

        Raises:
            PlanError: an id is outside [0, N), or the arrays differ in length.
        """
        ids, weights = np.asarray(ids, np.int64), np.asarray(weights)
        if ids.shape != weights.shape:
            raise PlanError(
                f"{ids.shape} ids came with {weights.shape} weights.",
                "Each record needs its own weight.",
                "add both arrays of the same batch.",
            )
        real = ids[weights > 0]
        if real.size and (real.min() < 0 or real.max() >= len(self._counts)):
            raise PlanError(
                f"Records from {real.min()} to {real.max()} were counted.",
                f"The audit covers 0 to {len(self._counts) - 1}.",
                "make the audit for the catalog that is read.",
            )
        np.add.at(self._counts, real, 1)

    def merge(self, other: CoverageAudit | NDArray[np.int32]) -> None:
        """Add another rank's, or an earlier run's, counts.

        Raises:
            PlanError: it covers another number of records.
        """
        counts = other._counts if isinstance(other, CoverageAudit) else np.asarray(other, np.int32)
        if counts.shape != self._counts.shape:
            raise PlanError(
                f"An audit of {len(counts)} records was to be merged into one of {len(self._counts)}.",
                "They are about different data.",
                "merge audits of one catalog only.",
            )
        self._counts += counts

    def missing(self) -> NDArray[np.int64]:
        """Ids of records never read, int64, ascending."""
        return np.flatnonzero(self._counts == 0)

    def duplicates(self) -> NDArray[np.int64]:
        """Ids of records read more than once, int64, ascending."""
        return np.flatnonzero(self._counts > 1)

    @property
    def complete(self) -> bool:
        """Whether every record was read exactly once."""
        return bool((self._counts == 1).all())
