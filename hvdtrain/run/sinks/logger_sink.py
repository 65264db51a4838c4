"""The sink of a logger: turns events into points, and gives them to a program that may be slow or out of reach by a
thread of its own. Training never waits for it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.measured import known_metrics, mean_seconds
from hvdtrain.run.sinks.logger_api import Further, MetricsWriter, Outcome, Point

_DEADLINES: Final[dict[Outcome, float]] = {"finished": 20.0, "stopped": 5.0, "failed": 0.5}
"""Seconds that a logger is waited for at the end. A job that was stopped may have little time left, and one that has
failed none: see `events.FAILURE_SECONDS`."""

_SECONDS: Final = 1.0
"""Between two points of training: programs that show curves thin out what is denser, and servers refuse it."""


_CAPACITY: Final = 10_000
"""Points that may wait: some megabytes, and some minutes of a fast training."""

_DELIVERY_SECONDS: Final = 1.0
"""Between two deliveries: one call for the points of a second, and a network's answer may take that long."""

_log = logging.getLogger("hvdtrain.run")


def training_point(event: events.Logged, time: float) -> Point:
    """Seconds are means over ranks since the last point, memory is that of the rank with the most."""
    values = {f"train/{name}": value for name, value in event.values.items()}
    values |= {metric.name: metric.as_number(value) for metric, value in known_metrics(event)}
    values |= {f"seconds/{part}": mean for part, mean in mean_seconds(event).items()}
    return Point(event.step, time, values)


def validation_point(event: events.Evaluated, time: float) -> Point:
    """The means over the validation data, and how long that took."""
    values = {f"validation/{name}": value for name, value in event.values.items()}
    return Point(event.step, time, {**values, "seconds/validation": event.seconds})


class LoggerSink:
    """Passes metrics on to a logger: of training those that come a second apart, and the last ones before any other
    event. Rank 0 only.

    `open_writer` opens it for a run of which so many updates are done, in a thread, when the run starts; each of
    `further` may give it more after an event. `validated`: the step of the last validation, where the start before has
    ended and the logger has that: a start that finds nothing left to train validates again.
    """

    def __init__(
        self,
        name: str,
        open_writer: Callable[[int], MetricsWriter],
        further: Sequence[Further] = (),
        validated: int | None = None,
    ) -> None:
        self._name, self._open_writer, self._further = name, open_writer, further
        self._validated, self._begun_at = validated, -1
        self._delivery: Delivery | None = None
        self._next_at = 0.0
        self._kept_back: tuple[events.Logged, float] | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                pass
            case events.Logged() if time.monotonic() < self._next_at:
                self._kept_back = event, time.time()
            case events.Logged():
                self._next_at, self._kept_back = time.monotonic() + _SECONDS, None
                self._put(training_point(event, time.time()))
            case _:
                if self._kept_back is not None:
                    self._put(training_point(*self._kept_back))
                    self._kept_back = None
                self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case events.RunStarted(step=step):
                self._begun_at = step
                self._delivery = Delivery(self._name, lambda: self._open_writer(step))
            case events.Evaluated(step=step) if step == self._begun_at == self._validated:
                pass
            case events.Evaluated():
                self._put(validation_point(event, time.time()))
            case events.RunEnded(finished=finished):
                self.close("finished" if finished else "stopped")
            case events.RunFailed():
                self.close("failed")
        for further in self._further:
            if (point := further(event)) is not None:
                self._put(point)

    def close(self, outcome: Outcome = "failed") -> None:
        """Deliver the rest, within a deadline. Once."""
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.close(outcome, _DEADLINES[outcome])

    def _put(self, point: Point) -> None:
        if self._delivery is not None:
            self._delivery.put(point)


class Delivery:
    """Points on their way to a logger. At most `capacity` of them wait; a warning says how many are left out.

    Where the logger raises, one warning says so, and it receives nothing more.
    """

    def __init__(
        self,
        name: str,
        open_writer: Callable[[], MetricsWriter],
        capacity: int = _CAPACITY,
        seconds: float = _DELIVERY_SECONDS,  # between two deliveries
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
        """Deliver the rest and close the logger, for `seconds` at most; a warning says what is not delivered then."""
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
