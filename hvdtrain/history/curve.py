"""A curve of any length in bounded memory, in which no extreme is lost."""

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

Point = tuple[int, float]

BUCKETS: Final = 256
"""Each gives four points at most, so that a curve has about a thousand."""


@dataclass(slots=True)
class Bucket:
    """What is kept of the values in a span of steps: the first and the last, the least and the greatest, their mean."""

    first: Point
    last: Point
    least: Point
    greatest: Point
    count: int
    total: float  # the sum of `count` values

    @property
    def mean(self) -> float:
        """Of its values."""
        return self.total / self.count

    def add(self, step: int, value: float) -> None:
        """One more value."""
        if step >= self.last[0]:
            self.last = (step, value)
        elif step < self.first[0]:
            self.first = (step, value)
        if value < self.least[1]:
            self.least = (step, value)
        elif value > self.greatest[1]:
            self.greatest = (step, value)
        self.count += 1
        self.total += value

    def merge(self, other: "Bucket") -> None:
        """All values of another one, which lies at its side."""
        self.first = min(self.first, other.first, key=itemgetter(0))
        self.last = max(self.last, other.last, key=itemgetter(0))
        self.least = min(self.least, other.least, key=itemgetter(1))
        self.greatest = max(self.greatest, other.greatest, key=itemgetter(1))
        self.count += other.count
        self.total += other.total

    def points(self) -> list[Point]:
        """What is kept, in the order of steps, each point once."""
        return sorted({self.first, self.least, self.greatest, self.last})


@dataclass(frozen=True, slots=True)
class Missed:
    """Steps whose value was not a finite number: the first and the last of them, and how many they are."""

    first: int
    last: int
    count: int


class Curve:
    """Values by steps, in buckets of equally many steps: 1, 2, 4, ... as many as it takes to keep them all.

    A value that follows one of the same step replaces it. Other steps may come in any order.
    """

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._most = buckets
        self._shift = 0
        self._buckets: dict[int, Bucket] = {}
        self._newest: Point | None = None
        self.missed: Missed | None = None

    def add(self, step: int, value: float) -> None:
        """Add a finite value at a step of 0 or more."""
        newest = self._newest
        if newest is not None and newest[0] != step:
            self._shift = _put(self._buckets, newest, self._shift, self._most)
        self._newest = (step, value)

    def miss(self, step: int) -> None:
        """The value of this step is NaN or infinite."""
        before = self.missed or Missed(step, step, 0)
        self.missed = Missed(min(before.first, step), max(before.last, step), before.count + 1)

    def __bool__(self) -> bool:
        return self._newest is not None

    def buckets(self, most: int | None = None) -> list[Bucket]:
        """Copies of the buckets in the order of steps, merged until there are at most so many."""
        copies = {index: replace(bucket) for index, bucket in self._buckets.items()}
        if self._newest is not None:
            _put(copies, self._newest, self._shift, min(self._most, most or self._most))
        return [copies[index] for index in sorted(copies)]

    def points(self, buckets: int | None = None) -> list[Point]:
        """What is kept of at most so many buckets, in the order of steps: at most four points for each."""
        return [point for bucket in self.buckets(buckets) for point in bucket.points()]

    def whole(self) -> Bucket | None:
        """All of it as one bucket; None where it is empty."""
        return next(iter(self.buckets(1)), None)


def _put(buckets: dict[int, Bucket], point: Point, shift: int, most: int) -> int:
    """Add a point to the buckets of 2**`shift` steps each, and merge them while there are too many; the new shift."""
    index = point[0] >> shift
    if (bucket := buckets.get(index)) is not None:
        bucket.add(*point)
    else:
        buckets[index] = Bucket(point, point, point, point, 1, point[1])
    while len(buckets) > most:
        shift += 1
        _halve(buckets)
    return shift


def _halve(buckets: dict[int, Bucket]) -> None:
    """Make one of each two neighbours."""
    for index in sorted(buckets):
        bucket = buckets.pop(index)
        if (other := buckets.get(index >> 1)) is None:
            buckets[index >> 1] = bucket
        else:
            other.merge(bucket)
