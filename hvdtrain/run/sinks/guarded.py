"""A sink that may fail without an end of training."""

import logging
from contextlib import ExitStack

from hvdtrain.engine.events import Callback, Event

_log = logging.getLogger("hvdtrain.run")


class Guarded:
    """Passes events on to a sink until that raises: one warning says so, it is closed, and training goes on.

    Args:
        name: of the sink, for people.
        sink: receives the events.
        opened: closes what the sink has opened.
    """

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
        """Close the sink."""
        try:
            self._opened.close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("%s failed, and training goes on without it: %s: %s", self.name, type(error).__name__, error)
            self.close()
