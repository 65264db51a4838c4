"""All sinks of a run. A new one is a file in this folder with an `open_sink`, and a line here."""

from collections.abc import Iterator
from contextlib import ExitStack

from hvdtrain.engine.events import Callback
from hvdtrain.run.sinks import metrics_file, progress, rank_log
from hvdtrain.run.sinks.interface import OpenSink, SinkContext

SINKS: tuple[OpenSink, ...] = (rank_log.open_sink, metrics_file.open_sink, progress.open_sink)
"""In the order in which they receive each event."""


def open_sinks(context: SinkContext, stack: ExitStack) -> Iterator[Callback]:
    """The callbacks of all sinks that have something to do on this rank, each as soon as it is open; `stack` closes
    them."""
    for open_sink in SINKS:
        sink = open_sink(context, stack)
        if sink is not None:
            yield sink
