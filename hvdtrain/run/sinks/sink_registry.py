"""All sinks of a run. A new one is a file in this folder with an `open_sink`, and a line here."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from hvdtrain.engine.events import Callback, Event
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.reading import text, whole
from hvdtrain.run.sinks import hash_file, metrics_file, metrics_table, progress, rank_log
from hvdtrain.run.sinks.logger_api import Logger, loggers_of
from hvdtrain.run.sinks.logger_sink import LoggerSink
from hvdtrain.run.sinks.sink import OpenSink, SinkContext

SINKS: tuple[OpenSink, ...] = (
    rank_log.open_sink,
    metrics_file.open_sink,
    metrics_table.open_sink,
    hash_file.open_sink,
    progress.open_sink,
)
"""In the order in which they receive each event. Loggers, which may wait at the end of a run, come after them."""

REQUIRED: Final[tuple[OpenSink, ...]] = (metrics_file.open_sink,)
"""Sinks without which training does not go on."""

_log = logging.getLogger("hvdtrain.run")


class Guarded:
    """Passes events on to a sink until that raises: one warning says so, it is closed, and training goes on."""

    def __init__(self, name: str, sink: Callback, opened: ExitStack) -> None:
        self.name, self.sink = name, sink
        self._opened = opened
        self._failed = False

    def __call__(self, event: Event) -> None:
        if self._failed:
            return
        try:
            self.sink(event)
        except Exception as error:
            self._give_up(error)

    def close(self) -> None:
        try:
            self._opened.close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("%s failed, and training goes on without it: %s: %s", self.name, type(error).__name__, error)
            self.close()


def open_sinks(context: SinkContext, stack: ExitStack) -> Iterator[Callback]:
    """The callbacks of all sinks that have something to do on this rank, each as soon as it is open; `stack` closes
    them."""
    for open_sink in SINKS:
        name = open_sink.__module__.rpartition(".")[2]
        sink = open_sink(context, stack) if open_sink in REQUIRED else _guarded(name, open_sink, context, stack)
        if sink is not None:
            yield sink
    if context.topology.is_root:
        for name, logger in loggers_of(context.config).items():
            if (sink := _guarded(f"{name}_logger", partial(_open_logger, name, logger), context, stack)) is not None:
                yield sink


def _open_logger(name: str, logger: Logger, context: SinkContext, stack: ExitStack) -> LoggerSink:
    end, folder = read_metrics_end(context.folder.metrics), context.folder
    kept = {"tensorboard": folder.tensorboard, "wandb": folder.wandb, "mlflow": folder.mlflow}.get(name)
    has_been_used = kept is not None and kept.exists() and text(end.end, "event") == "ended"
    validated = whole(end.validation, "step") if has_been_used else None
    sink = LoggerSink(logger.title, partial(logger.open, context), logger.further(context), validated)
    stack.callback(sink.close)
    return sink


def _guarded(name: str, open_sink: OpenSink, context: SinkContext, stack: ExitStack) -> Guarded | None:
    with ExitStack() as opening:  # closes what is open already, if the rest cannot be opened
        sink = open_sink(context, opening)
        if sink is None:
            return None
        guarded = Guarded(name, sink, opening.pop_all())
    stack.callback(guarded.close)
    return guarded
