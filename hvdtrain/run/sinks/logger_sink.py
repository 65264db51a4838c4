"""The sink of a logger: turns events into points and delivers them while training goes on."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from hvdtrain.config.logger_options import named_loggers
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.delivery import Delivery, Logger, Outcome
from hvdtrain.run.sinks.points import Point, training_point, validation_point
from hvdtrain.run.sinks.sink import SinkContext

_DEADLINES: Final[dict[Outcome, float]] = {"finished": 20.0, "stopped": 5.0, "failed": 0.5}
"""Seconds that a logger is waited for at the end. A job that was stopped may have little time left, and one that has
failed none: see `events.FAILURE_SECONDS`."""

_SECONDS: Final = 1.0
"""Between two points of training: programs that show curves thin out what is denser, and servers refuse it."""

OpenLogger = Callable[[int], Logger]
"""Opens a logger for a run that begins after this many updates."""

Further = Callable[[Event], Point | None]
"""What else a logger is given after an event, if anything."""


class LoggerSink:
    """Passes metrics on to a logger: of training those that come a second apart, and the last ones before any other
    event. Rank 0 only.

    Args:
        name: of the logger, for people.
        open_logger: opens it, in a thread, when the run starts.
        further: each may give it more after an event.
    """

    def __init__(self, name: str, open_logger: OpenLogger, further: Sequence[Further] = ()) -> None:
        self._name, self._open_logger, self._further = name, open_logger, further
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
                self._delivery = Delivery(self._name, lambda: self._open_logger(step))
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


def closed_by(stack: ExitStack, sink: LoggerSink) -> LoggerSink:
    """`sink`, which `stack` closes."""
    stack.callback(sink.close)
    return sink


def open_named(
    option: str, name: str, open_logger: OpenLogger, context: SinkContext, stack: ExitStack
) -> LoggerSink | None:
    """The sink of a logger, on rank 0, where --loggers names it as `option`; `name` is for people."""
    if not context.topology.is_root or option not in named_loggers(context.config):
        return None
    return closed_by(stack, LoggerSink(name, open_logger))
