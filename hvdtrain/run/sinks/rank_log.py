"""logs/rank_N.log: each rank's own log of the run."""

import logging
import time
from contextlib import ExitStack
from typing import Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.interface import SinkContext

_SECONDS: Final = 1.0
"""Between two lines of metrics: metrics.jsonl has them all, and a line costs as much as a small layer's step."""

_log = logging.getLogger("hvdtrain.run")


def open_sink(context: SinkContext, _stack: ExitStack) -> "RankLog":
    """On every rank; `RunFolder.open_log` has opened the file."""
    return RankLog(context.topology.rank)


class RankLog:
    """Logs every event of the rank `rank` except for single steps, and of metrics those that come a second apart."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._next_at = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                pass  # the summary in Logged suffices
            case events.Logged() if time.monotonic() < self._next_at:
                pass
            case events.Logged(epoch=epoch, step=step, values=values, rank_seconds=seconds):
                self._next_at = time.monotonic() + _SECONDS
                _log.info("epoch %d step %d %s own seconds %s", epoch, step, dict(values), vars(seconds[self._rank]))
            case _:
                _log.info("%s", event)
