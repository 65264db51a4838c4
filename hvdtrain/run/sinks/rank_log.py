"""logs/rank_N.log: each rank's own log of the run."""

import logging
import time
from contextlib import ExitStack
from typing import Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.event_text import numbers_of, text_of
from hvdtrain.run.sinks.sink import SinkContext

_SECONDS: Final = 1.0
"""Between two lines of metrics: metrics.jsonl has them all, and a line costs as much as a small layer's step."""

_log = logging.getLogger("hvdtrain.run")


def open_sink(context: SinkContext, _stack: ExitStack) -> "RankLog":
    """On every rank; `RunFolder.open_log` has opened the file."""
    return RankLog(context.topology.rank)


class RankLog:
    """Logs every event of the rank `rank` except for single steps. Of metrics, those that come a second apart, and the
    last ones before any other event. At the level debug, all metrics and all steps.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._next_at = 0.0
        self._all = _log.isEnabledFor(logging.DEBUG)
        self._unwritten: events.Logged | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                if self._all:  # else the summary in Logged suffices
                    _log.debug("epoch %d, step %d", event.epoch + 1, event.step)
            case events.Logged() if not self._all and time.monotonic() < self._next_at:
                self._unwritten = event
            case events.Logged():
                self._write(event)
            case events.StragglerFound(straggler=straggler):
                _log.warning("%s", straggler.sentence)  # which rank 0's console shows
            case _:
                if self._unwritten is not None:
                    self._write(self._unwritten)
                _log.info("%s", text_of(event))

    def _write(self, event: events.Logged) -> None:
        self._next_at, self._unwritten = time.monotonic() + _SECONDS, None
        values, seconds = numbers_of(event.values), numbers_of(event.rank_seconds[self._rank].known())
        _log.info("epoch %d, step %d: %s; seconds of this rank: %s", event.epoch + 1, event.step, values, seconds)
