"""All sinks of a run. A new one is a file in this folder with an `open_sink`, and a line here."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from hvdtrain.engine.events import Callback
from hvdtrain.run.sinks import (
    metrics_file,
    metrics_table,
    mlflow_logger,
    progress,
    rank_log,
    tensorboard_logger,
    wandb_logger,
)
from hvdtrain.run.sinks.guarded import Guarded
from hvdtrain.run.sinks.sink import OpenSink, SinkContext

SINKS: tuple[OpenSink, ...] = (
    rank_log.open_sink,
    metrics_file.open_sink,
    metrics_table.open_sink,
    progress.open_sink,
    tensorboard_logger.open_sink,
    wandb_logger.open_sink,
    mlflow_logger.open_sink,
)
"""In the order in which they receive each event. Those that may wait at the end of a run are last."""

REQUIRED: Final[tuple[OpenSink, ...]] = (metrics_file.open_sink,)
"""Sinks without which training does not go on."""


def open_sinks(context: SinkContext, stack: ExitStack) -> Iterator[Callback]:
    """The callbacks of all sinks that have something to do on this rank, each as soon as it is open; `stack` closes
    them."""
    for open_sink in SINKS:
        sink = open_sink(context, stack) if open_sink in REQUIRED else _guarded(open_sink, context, stack)
        if sink is not None:
            yield sink


def _guarded(open_sink: OpenSink, context: SinkContext, stack: ExitStack) -> Guarded | None:
    with ExitStack() as opening:  # closes what is open already, if the rest cannot be opened
        sink = open_sink(context, opening)
        if sink is None:
            return None
        guarded = Guarded(open_sink.__module__.rpartition(".")[2], sink, opening.pop_all())
    stack.callback(guarded.close)
    return guarded
