"""How long the named parts of a loop take, added up between two readings."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Span:
    """One block whose time was taken: its `seconds`, once it has ended."""

    seconds = 0.0


class Stopwatch:
    """Adds up seconds by name. A span costs two readings of the clock, and never waits for a device."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Add the time that the block takes, also where it raises. Spans of one name must not be nested."""
        span, begin = Span(), time.perf_counter()
        try:
            yield span
        finally:
            span.seconds = time.perf_counter() - begin
            self.add(name, span.seconds)

    def waits(self, name: str, values: Iterable[T]) -> Iterator[T]:
        """The same values; the time spent waiting for each of them, and for their end, is added."""
        iterator = iter(values)
        while True:
            with self.span(name):
                try:
                    value = next(iterator)
                except StopIteration:
                    return
            yield value

    def add(self, name: str, seconds: float) -> None:
        """Add what was measured elsewhere, for example inside a TensorFlow graph."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self, name: str) -> float:
        """Seconds of `name` since the last call; 0 where there were none."""
        return self._seconds.pop(name, 0.0)
