"""What the other ranks send to the audit at a save: each has used records of its own."""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.scale.stand_in import Array, same_of_all, sum_of_same
from data_sharding import CoverageAudit

_STEPS: Final = 10  # between two saves, unless an epoch has fewer


class OtherAudits:
    """Some steps of a shuffled epoch of so many records, in which each of `size` ranks has used `batch` a step."""

    def __init__(self, size: int, records: int, batch: int) -> None:
        whole = records // (batch * size)  # steps; the one after them has the rest of the records
        self.steps, self.steps_per_epoch = min(whole, _STEPS), whole + 1
        used = np.random.default_rng(0).permutation(records)[: self.steps * size * batch]
        self.ids = used.reshape(self.steps, size, batch)  # of each step and rank
        self._parts = [_audit(records, self.ids[:, rank]).to_bytes() for rank in range(size)]
        together = _audit(records, self.ids)
        self._words = together.words() if hasattr(together, "words") else None  # an earlier version has none

    def gathered(self, array: Array, size: int, name: str) -> Array:
        """As `StandIn.others`."""
        if name == "hvdtrain.audit.counts.lengths":
            return np.array([len(part) for part in self._parts])
        if name == "hvdtrain.audit.counts.data":
            return np.frombuffer(b"".join(self._parts), np.uint8)
        return same_of_all(array, size, name)

    def summed(self, array: Array, size: int, name: str) -> Array:
        """As `StandIn.sums`."""
        if name == "hvdtrain.audit.words" and self._words is not None:
            return self._words
        return sum_of_same(array, size, name)


def _audit(records: int, ids: Array) -> CoverageAudit:
    audit = CoverageAudit(records)
    audit.add(ids.ravel(), np.ones(ids.size, np.float32))
    return audit
