"""logs/rank_N.log: each rank's own log of the run, an event a line:
"run started: step 0, total steps 360, steps per epoch 30, epochs 12"."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from typing import Any, Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.run.sinks.sink import SinkContext

_SECONDS: Final = 1.0
"""Between two lines of metrics: metrics.jsonl has them all, and a line costs as much as a small layer's step."""

_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")

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
        own = event.rank_seconds[self._rank] if event.summary is None else event.summary.own
        values, seconds = numbers_of(event.values), numbers_of(own.known())
        _log.info("epoch %d, step %d: %s; seconds of this rank: %s", event.epoch + 1, event.step, values, seconds)


def text_of(event: Event) -> str:
    """In one line; epochs are counted from 1, as on the console."""
    what = _WORDS.sub(" ", type(event).__name__).lower()
    return f"{what}: {', '.join(_facts(event))}"


def numbers_of(values: Mapping[str, float]) -> str:
    """As "loss 1.7, accuracy 0.634"."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _facts(owner: Any) -> Iterator[str]:
    for field in fields(owner):
        value = getattr(owner, field.name)
        if value not in (None, "", {}, ()):
            yield f"{field.name.replace('_', ' ')} {_shown(value + 1 if field.name == 'epoch' else value)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return f"({numbers_of(value)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, BaseException):
        return " ".join(f"{type(value).__name__}: {value}".split())
    return f"({', '.join(_facts(value))})" if is_dataclass(value) else str(value)
