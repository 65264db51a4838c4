"""logs/rank_N.log: each rank's own log of the run."""

import logging
from contextlib import ExitStack
from dataclasses import asdict

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.interface import SinkContext

_log = logging.getLogger("hvdtrain.run")


def open_sink(context: SinkContext, _stack: ExitStack) -> "RankLog":
    """On every rank; `RunFolder.open_log` has opened the file."""
    return RankLog(context.topology.rank)


class RankLog:
    """Logs every event of the rank `rank` except for single steps."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, event: Event) -> None:
        match event:
            case events.StepEnded():
                pass  # the summary in Logged suffices
            case events.Logged(epoch=epoch, step=step, values=values, rank_seconds=seconds):
                _log.info("epoch %d step %d %s own seconds %s", epoch, step, dict(values), asdict(seconds[self._rank]))
            case _:
                _log.info("%s", event)
