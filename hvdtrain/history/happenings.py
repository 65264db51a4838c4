"""What happened in a run besides training: starts, stops, failures and checkpoints, each kept or counted."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from hvdtrain.history.json_lines import Line
from hvdtrain.history.json_values import text
from hvdtrain.history.values import finite, seconds_in

_KINDS: Final = {
    "started": "start",
    "resumed": "resume",
    "ended": "end",
    "failed": "failure",
    "stopped early": "early stop",
    "checkpoint failed": "checkpoint failed",
}
_WHY: Final = {"failed": "error", "checkpoint failed": "reason", "ended": "stopped_by"}
_MOST: Final = 500  # of each end of a run
_LONGEST: Final = 2000  # characters of a cause


@dataclass(frozen=True)
class Happening:
    """Attributes:
    kind: one of the values of `_KINDS`, or "stop" for an end before all was trained.
    step: updates before it.
    at: `time.time()`; None where the line does not say.
    text: what the line says of it, the cause of a stop or of a restart, or an error.
    after_end: whether the start before has ended, for "resume": else it was interrupted.
    """

    kind: str
    step: int
    at: float | None
    text: str
    after_end: bool = False


@dataclass
class Happenings:
    """The first and the last ones, in the order of time.

    Attributes:
        left_out: how many there are between them.
    """

    first: list[Happening] = field(default_factory=list)
    last: deque[Happening] = field(default_factory=lambda: deque(maxlen=_MOST))
    left_out: int = 0
    _is_ended: bool = False

    def add(self, line: Line, step: int, at: float | None) -> None:
        """A line with an "event"; one that tells nothing of this kind is left out."""
        event = line.get("event")
        kind = _KINDS.get(event) if isinstance(event, str) else None
        if kind is None:
            return
        told = text(line, _WHY.get(str(event), "cause"))[:_LONGEST]
        kind = "stop" if kind == "end" and told else kind
        happening = Happening(kind, step, at, told, kind == "resume" and self._is_ended)
        self._is_ended = kind in ("end", "stop") or (self._is_ended and kind not in ("start", "resume"))
        if len(self.first) < _MOST:
            self.first.append(happening)
            return
        self.left_out += len(self.last) == _MOST
        self.last.append(happening)

    def __iter__(self) -> Iterator[Happening]:
        yield from self.first
        yield from self.last

    @property
    def newest(self) -> Happening | None:
        """The last one; None where there is none."""
        return self.last[-1] if self.last else self.first[-1] if self.first else None


@dataclass
class CheckpointTotals:
    """How many checkpoints there were, and what they cost.

    Attributes:
        written, failed, skipped: how many.
        seconds: that training has waited for them, and `longest`: for one of them.
        write_seconds: that writing them took, most of it beside training.
        largest: bytes of the largest one.
        newest: step of the newest one that counts; None without one.
    """

    written: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    write_seconds: float = 0.0
    largest: int = 0
    newest: int | None = None

    def add(self, line: Line, step: int, counts: bool) -> None:
        """A line with an "event"; one that is of no checkpoint is left out."""
        event = line.get("event")
        self.failed += event == "checkpoint failed"
        self.skipped += event == "checkpoint skipped"
        if event == "checkpoint":
            self.written += 1
            self.seconds += seconds_in(line)
            self.longest = max(self.longest, seconds_in(line))
            self.write_seconds += seconds_in(line, "write_seconds")
            self.largest = max(self.largest, int(finite(line.get("bytes")) or 0))
            self.newest = step if counts else self.newest
