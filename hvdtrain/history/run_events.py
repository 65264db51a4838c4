"""What happened in a run besides training: starts, stops, failures, checkpoints and stalls, each kept or counted."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from hvdtrain.history.reading import UNREADABLE, Line, number, read_bounded, reason, seconds_in, text

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
_EXPLANATION: Final = "explanation.txt"
_MOST_STARTS, _MOST_BYTES, _MOST_LOOKED_AT = 20, 2**16, 10_000


@dataclass(frozen=True)
class RunEvent:
    """One that is kept."""

    kind: str  # one of the values of `_KINDS`, or "stop" for an end before all was trained
    step: int  # updates before it
    at: float | None  # `time.time()`; None where the line does not say
    text: str  # what the line says of it, the cause of a stop or of a restart, or an error
    # for "resume": whether the start before has ended, else it was interrupted; None where there was none here
    after_end: bool | None = False


@dataclass
class RunEvents:
    """The first and the last ones, in the order of time."""

    first: list[RunEvent] = field(default_factory=list)
    last: deque[RunEvent] = field(default_factory=lambda: deque(maxlen=_MOST))
    left_out: int = 0  # how many there are between them
    _is_ended: bool | None = None  # whether the newest start has; None before the first one

    def add(self, line: Line, step: int, at: float | None) -> None:
        """A line with an "event"; one of another kind is left out."""
        event = line.get("event")
        kind = _KINDS.get(event) if isinstance(event, str) else None
        if kind is None:
            return
        cause = text(line, _WHY.get(str(event), "cause"))[:_LONGEST]
        kind = "stop" if kind == "end" and cause else kind
        if kind == "start" and self._is_ended is False:  # it was interrupted before its first checkpoint
            kind = "resume"
        run_event = RunEvent(kind, step, at, cause, self._is_ended if kind == "resume" else False)
        if kind in ("start", "resume", "end", "stop"):
            self._is_ended = kind in ("end", "stop")
        if len(self.first) < _MOST:
            self.first.append(run_event)
            return
        self.left_out += len(self.last) == _MOST
        self.last.append(run_event)

    def __iter__(self) -> Iterator[RunEvent]:
        yield from self.first
        yield from self.last


@dataclass
class CheckpointTotals:
    """How many checkpoints there were, and what they cost."""

    written: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0  # that training has waited for them
    longest: float = 0.0  # the same for the one that took longest
    write_seconds: float = 0.0  # that writing them took, most of it beside training
    largest: int = 0  # bytes of the largest one

    def add(self, line: Line) -> None:
        """A line with an "event"; one that is not of a checkpoint is left out."""
        event = line.get("event")
        self.failed += event == "checkpoint failed"
        self.skipped += event == "checkpoint skipped"
        if event == "checkpoint":
            self.written += 1
            self.seconds += seconds_in(line)
            self.longest = max(self.longest, seconds_in(line))
            self.write_seconds += seconds_in(line, "write_seconds")
            self.largest = max(self.largest, int(number(line, "bytes") or 0))


def read_stalls(run: Path) -> tuple[dict[str, str], list[str]]:
    """The explanations that the run's watchdog has left: when training did not go on, and who waited for whom.

    Returns a line for each explanation, by the name of the start's folder, which says when it began, of the newest
    starts, the oldest first; and what could not be read, in sentences.
    """
    stalls, problems = {}, []
    try:
        folders = sorted(islice((run / "stalls").iterdir(), _MOST_LOOKED_AT)) if (run / "stalls").is_dir() else []
    except OSError as error:
        return {}, [f"stalls/ {reason(error)}."]
    for folder in folders[-_MOST_STARTS:]:
        try:
            explanation = read_bounded(folder / _EXPLANATION, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue  # the ranks were still writing when the run ended
        except UNREADABLE as error:
            problems.append(f"stalls/{folder.name}/{_EXPLANATION} {reason(error)}.")
            continue
        stalls[folder.name] = explanation.decode(errors="replace").strip()
    return stalls, problems
