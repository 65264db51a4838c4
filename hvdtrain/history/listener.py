"""Listens to heartbeats over time. By then clocks of other hosts do not matter: what changes has just been written."""

import time
from collections.abc import Callable
from pathlib import Path

from hvdtrain.history.heartbeats import Heard, read_heartbeats


class Listener:
    """Listens to the ranks of the run in the folder `run`.

    Attributes:
        unread: ranks whose files could not be read when they were looked at last.
    """

    def __init__(self, run: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._last: dict[int, tuple[tuple[str, int, int], float]] = {}  # which heartbeat, and when it was written
        self._looked_at: float | None = None
        self.unread: set[int] = set()

    def hear(self) -> dict[int, Heard]:
        """The heartbeats of the last start, by rank, with their ages by the clock of this process."""
        self.unread = set()
        found, now = read_heartbeats(self._run, self.unread), self._clock()
        last: dict[int, tuple[tuple[str, int, int], float]] = {}
        for rank, heard in found.items():
            which = (heard.beat.start, heard.beat.pid, heard.beat.beat)
            known = self._last.get(rank)
            if known is not None and known[0] == which:
                last[rank] = known
            elif self._looked_at is not None and known is not None:
                last[rank] = which, max(self._looked_at, now - heard.age)  # written since the last look
            else:
                last[rank] = which, now - heard.age
        self._last, self._looked_at = last, now
        return {rank: Heard(heard.beat, max(0.0, now - last[rank][1])) for rank, heard in found.items()}
