"""Gives points to a program that may be slow or out of reach, by a thread of its own: training never waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from hvdtrain.run.sinks.logger_api import MetricsWriter, Outcome, Point

CAPACITY: Final = 10_000
"""Points that may wait: some megabytes, and some minutes of a fast training."""

_SECONDS: Final = 1.0
"""Between two deliveries: one call for the points of a second, and a network's answer may take that long."""

_log = logging.getLogger("hvdtrain.run")


class Delivery:
    """Points on their way to a logger. At most `capacity` of them wait; a warning tells how many are left out.

    Where the logger raises, one warning says so, and it receives nothing more.

    Args:
        name: of the logger, for people.
        open_writer: opens it, in the thread.
        seconds: between two deliveries.
    """

    def __init__(
        self, name: str, open_writer: Callable[[], MetricsWriter], capacity: int = CAPACITY, seconds: float = _SECONDS
    ) -> None:
        self._name, self._open_writer, self._capacity, self._seconds = name, open_writer, capacity, seconds
        self._waiting: deque[Point] = deque()
        self._writing = self._left_out = 0
        self._outcome: Outcome = "failed"
        self._ending = threading.Event()
        self._is_over = False  # the logger has failed, or nobody waits for it any more
        self._thread = threading.Thread(target=self._run, name=f"hvdtrain-{name}", daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        """Hand over a point. Never waits."""
        if self._is_over:
            return
        if len(self._waiting) < self._capacity:
            self._waiting.append(point)
            return
        if not self._left_out:
            _log.warning("%s does not take metrics as fast as they come, so it will not have all of them", self._name)
        self._left_out += 1

    def close(self, outcome: Outcome, seconds: float) -> None:
        """Deliver the rest and close the logger, for `seconds` at most; what is not delivered then is told."""
        self._outcome = outcome
        self._ending.set()
        self._thread.join(seconds)
        if self._is_over:
            return
        self._is_over = True
        undelivered = len(self._waiting) + self._writing + self._left_out
        if undelivered:
            _log.warning("%s was not given %d points of metrics; metrics.jsonl has them", self._name, undelivered)
        elif self._thread.is_alive():
            _log.warning("%s did not end within %g s, and is left alone", self._name, seconds)

    def _run(self) -> None:
        try:
            writer = self._open_writer()
            while not self._ending.wait(self._seconds):
                self._deliver(writer)
            self._deliver(writer)
            writer.close(self._outcome)
        except (Exception, SystemExit) as error:
            if not self._is_over:
                self._is_over = True
                self._waiting.clear()
                kind = type(error).__name__
                _log.warning("%s failed, and training goes on without it: %s: %s", self._name, kind, error)

    def _deliver(self, writer: MetricsWriter) -> None:
        points = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._writing = len(points)
        if points:
            writer.write(points)
        self._writing = 0
