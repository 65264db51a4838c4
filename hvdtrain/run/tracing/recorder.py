"""What hvdtrain itself does on a rank while a trace is recorded: phases, parts of steps, waits, whole steps."""

from typing import Final, NamedTuple

from hvdtrain.activity import WAIT

STEPS, PHASES, PARTS, WAITS = "steps", "phases", "parts of steps", "calls that wait for other ranks"

_MOST: Final = 200_000
"""Spans of one trace: those of 1,000 steps of many micro batches. What follows is left out."""


class Span(NamedTuple):
    """Attributes: `begin` and `end` are of `time.perf_counter`, which `time.monotonic` equals on Linux."""

    lane: str
    name: str
    begin: float
    end: float


class Recorder:
    """Its methods are called by several threads."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def phase(self, name: str, begin: float, end: float) -> None:
        """As `Activity.trace` is called."""
        self._add(WAITS if name.startswith(WAIT) else PHASES, name.removeprefix(WAIT), begin, end)

    def part(self, name: str, begin: float, end: float) -> None:
        """As an adapter tells the parts of its steps."""
        self._add(PARTS, name, begin, end)

    def step(self, number: int, begin: float, end: float) -> None:
        """A whole update, with all that follows it until the next one."""
        self._add(STEPS, f"update {number}", begin, end)

    def _add(self, lane: str, name: str, begin: float, end: float) -> None:
        if len(self.spans) < _MOST:
            self.spans.append(Span(lane, name, begin, end))
