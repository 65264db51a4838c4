"""All sinks of a run. A new one is a file in this folder with an `open_sink`, and a line here."""

from contextlib import ExitStack

from hvdtrain.engine.events import Callback
from hvdtrain.run.sinks import metrics_file, progress, rank_log
from hvdtrain.run.sinks.interface import OpenSink, SinkContext

SINKS: tuple[OpenSink, ...] = (rank_log.open_sink, metrics_file.open_sink, progress.open_sink)
"""In the order in which they receive each event."""


def open_sinks(context: SinkContext, stack: ExitStack) -> list[Callback]:
    """The callbacks of all sinks that have something to do on this rank; `stack` closes them."""
    opened = (open_sink(context, stack) for open_sink in SINKS)
    return [sink for sink in opened if sink is not None]
