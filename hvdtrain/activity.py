"""What this process does now, kept for a watchdog: the main thread writes it down, and cannot tell it while it hangs.

A process has one training at a time, so there is one `now`. Writing it down takes less than a microsecond.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

Phase = Literal["start", "data", "step", "validation data", "validation step", "checkpoint", "end"]

WAIT: Final = "wait for "
"""Begins the names of waits, as `Activity.trace` is told them."""


class Activity:
    """One process's doing.

    Attributes:
        phase: what it is in, `since` when (of `time.monotonic`).
        step: updates done.
        reached: updates that were done when the workers of an elastic job last lost one of them; 0: not known.
        collective: the last one that it waited for, by name; "" before the first.
        wait: what a block that may wait for other ranks waits for at the moment, None if it computes; None outside of
            such a block.
        reads: what is being read, for people, while the phase is "data" or "validation data".
        changed_at: when a phase or a wait has last begun or ended.
        longest: for each phase, what it has taken at most since this was last cleared, in seconds. Of checkpoints that
            is their writing, which goes on in the background while the phases are short.
        beats: whether collectives are no progress at the moment: they only say that some rank still works.
        trace: is told each phase and each wait that ends: its name, its begin and its end, of `time.monotonic`.
    """

    __slots__ = (
        "beats",
        "changed_at",
        "collective",
        "longest",
        "phase",
        "reached",
        "reads",
        "since",
        "step",
        "trace",
        "wait",
    )

    def __init__(self) -> None:
        self.phase: Phase = "start"
        self.since = self.changed_at = time.monotonic()
        self.longest: dict[Phase, float] = {}
        self.beats = False
        self.step = self.reached = 0
        self.collective = ""
        self.wait: Callable[[], object | None] | None = None
        self.reads: Callable[[], str] = str
        self.trace: Callable[[str, float, float], object] | None = None

    def begin(self, phase: Phase, step: int) -> None:
        """Another phase begins, after `step` updates."""
        at = time.monotonic()
        if self.phase != "checkpoint":
            self.took(self.phase, at - self.since)
        if self.trace is not None:
            self.trace(self.phase, self.since, at)
        self.phase, self.step = phase, step
        self.since = self.changed_at = at

    def took(self, phase: Phase, seconds: float) -> None:
        """A phase has taken so long."""
        if seconds > self.longest.get(phase, 0.0):
            self.longest[phase] = seconds

    def begin_wait(self, waits: Callable[[], object | None], collective: str) -> None:
        """A block that waits for other ranks begins."""
        if self.beats:
            return
        self.collective = collective
        self.wait = waits
        self.changed_at = time.monotonic()

    def end_wait(self) -> None:
        """It has ended."""
        if self.beats:
            return
        at = time.monotonic()
        if self.trace is not None:
            self.trace(f"{WAIT}{self.collective}", self.changed_at, at)
        self.wait = None
        self.changed_at = at

    def does_own_work(self) -> bool:
        """Whether the others wait for what this rank does alone, such as writing a file: it may use no processor."""
        return self.beats and self.wait is None

    def waits_in(self) -> str | None:
        """The collective in which this process waits for other ranks, None if it does not. For another thread."""
        wait = self.wait
        return (self.collective or "a collective") if wait is not None and wait() is not None else None

    def is_reading(self) -> bool:
        """Whether `reads` tells what is being read."""
        return self.phase in ("data", "validation data")


now: Final = Activity()
