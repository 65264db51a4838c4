"""How long the named parts of a loop take, added up between two readings."""

import time
from typing import Self


class Stopwatch:
    """Adds up seconds by name. A span costs two readings of the clock, and never waits for a device."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def span(self, name: str) -> "Span":
        """Add the time that the block takes, also where it raises. Spans of one name must not be nested."""
        return Span(self, name)

    def add(self, name: str, seconds: float) -> None:
        """Add what was measured elsewhere, for example inside a TensorFlow graph."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self, name: str) -> float:
        """Seconds of `name` since the last call; 0 where there were none."""
        return self._seconds.pop(name, 0.0)


class Span:
    """A block whose time is added to a `Stopwatch`. A class, which is entered sooner than a generator.

    Attributes:
        seconds: how long the block took, once it has ended.
    """

    __slots__ = ("_begin", "_name", "_watch", "seconds")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self._name = watch, name
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self._watch.add(self._name, self.seconds)
