"""The sink of a logger: turns events into points and delivers them while training goes on."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.delivery import Delivery
from hvdtrain.run.sinks.logger_api import Further, MetricsWriter, Outcome, Point
from hvdtrain.run.sinks.points import training_point, validation_point

_DEADLINES: Final[dict[Outcome, float]] = {"finished": 20.0, "stopped": 5.0, "failed": 0.5}
"""Seconds that a logger is waited for at the end. A job that was stopped may have little time left, and one that has
failed none: see `events.FAILURE_SECONDS`."""

_SECONDS: Final = 1.0
"""Between two points of training: programs that show curves thin out what is denser, and servers refuse it."""


class LoggerSink:
    """Passes metrics on to a logger: of training those that come a second apart, and the last ones before any other
    event. Rank 0 only.

    Args:
        name: of the logger, for people.
        open_writer: opens it for a run of which so many updates are done, in a thread, when the run starts.
        further: each may give it more after an event.
    """

    def __init__(self, name: str, open_writer: Callable[[int], MetricsWriter], further: Sequence[Further] = ()) -> None:
        self._name, self._open_writer, self._further = name, open_writer, further
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
                self._delivery = Delivery(self._name, lambda: self._open_writer(step))
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
