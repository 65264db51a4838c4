"""Proof that an epoch read every record exactly once."""

import functools
import itertools
from collections.abc import Iterable
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from data_sharding.audit import serialization
from data_sharding.audit.serialization import Bitmap
from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.sample_random import GOLDEN, mix

_NONE: Final = np.zeros(0, np.int64)


class CoverageAudit:
    """Which records were read with a weight above 0, and which of them more than once.

    Memory: one bit for each of the N records, and 8 bytes for each reading beyond a record's first. Every rank keeps an
    audit of what it read; `merge` or `union` makes one of them, in any order, across restarts and changes of size. Add
    a step when it is committed: one that is rolled back and read again would count as read twice.

    Ranks can first compare two numbers: if their `count`s add up to `expected_count`, and the XOR of their `digest`s is
    `expected_digest`, then together they read everything once, unless 64-bit hashes collide. Only if not, the audits
    themselves need to be brought together, as `to_bytes`, to name the records.
    """

    def __init__(self, num_records: int) -> None:
        num_records = whole("num_records", num_records)
        if num_records < 1:
            fact = f"An audit of {num_records} records was asked for."
            raise PlanError(fact, "There is nothing to audit.", "check the data.")
        self._read = Bitmap(num_records)
        self._repeats: list[NDArray[np.int64]] = []
        self._excluded = _NONE

    @classmethod
    def union(cls, audits: Iterable["CoverageAudit"]) -> Self:
        """One audit of all that was read by any of them.

        Raises PlanError (there are none, or they cover different numbers of records).
        """
        if not (audits := list(audits)):
            raise PlanError("No audits were given.", "Their union has no number of records.", "pass one or more.")
        whole = cls(audits[0].num_records)
        for audit in audits:
            whole.merge(audit)
        return whole

    @classmethod
    def from_array(cls, counts: NDArray[np.int32]) -> Self:
        """An audit of records read counts int32[N] times, such as the sum of all ranks' `to_array()`."""
        audit = cls(len(counts))
        audit._put(np.repeat(np.arange(len(counts)), counts))
        return audit

    @classmethod
    def from_bytes(cls, data: bytes, num_records: int | None = None) -> Self:
        """The audit that `to_bytes` wrote; with `num_records`, one of so many records, and of no others.

        Raises CatalogError (the bytes are damaged, of another version, or of another number of records).
        """
        decoded = serialization.decode(data, num_records)
        audit = cls(decoded.n)
        audit._read, audit._repeats, audit._excluded = decoded.bitmap(), [decoded.repeats], decoded.excluded
        return audit

    @classmethod
    def union_of_bytes(cls, parts: Iterable[bytes], num_records: int) -> Self:
        """As `union` of the audits that `to_bytes` wrote, such as those of many ranks: ids of all are put in at once.

        Raises CatalogError as `from_bytes` does.
        """
        whole, ids, excluded = cls(num_records), [_NONE], [_NONE]
        for decoded in (serialization.decode(part, num_records) for part in parts):
            excluded.append(decoded.excluded)
            whole._repeats.append(decoded.repeats)
            if decoded.bits is None:
                ids.append(decoded.ids)
            else:
                whole._merge_read(decoded.bits)
        whole._put(np.concatenate(ids))
        whole._excluded = np.unique(np.concatenate(excluded))
        return whole

    def words(self) -> NDArray[np.int64]:
        """Which records were read, as 64 bits in each int64[ceil(N / 64)], for `from_sums`."""
        return self._read.words()

    @classmethod
    def from_sums(cls, words: NDArray[np.int64], count: int, num_records: int) -> Self | None:
        """The union of audits without exclusions, from the sum of their `words()`, modulo 2**64, and of their `count`s.

        None: a record was read more than once, which sums do not name. That is certain: where bits are added, each
        carry loses one (E. Kummer, 1852), so that the sum has `count` bits only if no two of them met.
        """
        if int(np.bitwise_count(words.view(np.uint64)).sum(dtype=np.int64)) != count:
            return None
        audit = cls(num_records)
        audit._read = Bitmap.of_words(words, num_records)
        return audit

    def to_bytes(self) -> bytes:
        """The audit in few bytes that check themselves; the ids or the bitmap, whichever takes fewer, compressed."""
        return serialization.encode(self._read, self._all_repeats(), self._excluded)

    def to_array(self) -> NDArray[np.int32]:
        """How often each record was read, int32[N]."""
        counts = np.unpackbits(self._read.bits, count=self.num_records, bitorder="little").astype(np.int32)
        np.add.at(counts, self._all_repeats(), 1)
        return counts

    @property
    def num_records(self) -> int:
        """N, records of the data set."""
        return self._read.n

    def add(self, ids: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        """Count the records ids int64[k] whose weights float32[k] are above 0.

        Raises PlanError (an id is outside [0, N), or the arrays differ in length).
        """
        ids, weights = np.asarray(ids, np.int64), np.asarray(weights)
        if ids.shape != weights.shape:
            fact = f"{ids.shape} ids came with {weights.shape} weights."
            raise PlanError(fact, "Each record needs its own weight.", "add both arrays of the same batch.")
        self._put(self._checked(ids[weights > 0]))

    def exclude(self, ids: NDArray[np.int64]) -> None:
        """Do not expect these records ids int64[k], which the plan dropped or which were masked as corrupt.

        One that is read all the same is not a fault. Raises PlanError if an id is outside [0, N).
        """
        self._excluded = np.union1d(self._excluded, self._checked(np.asarray(ids, np.int64)))

    def merge(self, other: "CoverageAudit") -> None:
        """Add what another rank, or an earlier run, read and excluded. Raises PlanError if it is of another N."""
        if other.num_records != self.num_records:
            fact = f"An audit of {other.num_records} records was to be merged into one of {self.num_records}."
            raise PlanError(fact, "They are about different data.", "merge audits of one catalog only.")
        self._repeats += other._repeats
        self._merge_read(other._read.bits)
        self._excluded = np.union1d(self._excluded, other._excluded)

    def missing(self) -> NDArray[np.int64]:
        """Ids of records neither read nor excluded, int64, ascending."""
        return np.setdiff1d(np.concatenate([*self._read.ids(inside=False)]), self._excluded, assume_unique=True)

    def duplicates(self) -> NDArray[np.int64]:
        """Ids of records read more than once, int64, ascending."""
        return np.unique(self._all_repeats())

    @property
    def excluded(self) -> NDArray[np.int64]:
        """Ids of records that are not expected, int64, ascending."""
        return self._excluded.copy()

    @property
    def complete(self) -> bool:
        """Whether every expected record was read, and none twice."""
        unread_exclusions = int((~self._read.has(self._excluded)).sum())
        return not any(map(len, self._repeats)) and len(self._read) + unread_exclusions == self.num_records

    @property
    def count(self) -> int:
        """Readings of records, each as often as it was read."""
        return len(self._read) + sum(map(len, self._repeats))

    @property
    def digest(self) -> int:
        """64-bit XOR of the hashes of the ids read, each as often as it was read. XOR adds up ranks' digests."""
        return functools.reduce(_xor_digest, itertools.chain(self._read.ids(), self._repeats), 0)

    @property
    def expected_count(self) -> int:
        """Records that are not excluded."""
        return self.num_records - len(self._excluded)

    @property
    def expected_digest(self) -> int:
        """The digest of an audit that read every record that is not excluded once."""
        nothing = Bitmap(self.num_records)
        return functools.reduce(_xor_digest, nothing.ids(inside=False), _xor_digest(0, self._excluded))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoverageAudit) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _all_repeats(self) -> NDArray[np.int64]:
        self._repeats = [np.sort(np.concatenate([_NONE, *self._repeats]))]
        return self._repeats[0]

    def _merge_read(self, bits: NDArray[np.uint8]) -> None:
        both = Bitmap(self.num_records)
        np.bitwise_and(self._read.bits, bits, out=both.bits)
        if both.bits.any():
            self._repeats += both.ids()
        self._read.bits |= bits

    def _put(self, ids: NDArray[np.int64]) -> None:
        repeated = self._read.add(ids)
        if repeated.size:
            self._repeats.append(repeated)

    def _checked(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_records):
            fact = f"Records from {ids.min()} to {ids.max()} were counted."
            conflict = f"The audit covers 0 to {self.num_records - 1}."
            raise PlanError(fact, conflict, "make the audit for the catalog that is read.")
        return ids


def _xor_digest(digest: int, ids: NDArray[np.int64]) -> int:
    # The hash of 0 would be 0, and its record would not count.
    hashes = mix((ids.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return digest ^ int(np.bitwise_xor.reduce(hashes))
