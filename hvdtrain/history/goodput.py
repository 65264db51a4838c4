"""How much of a run's time trained weights that count, from the lines of its metrics.jsonl: through all its restarts.

A start that ended without RunEnded was interrupted; the next one resumes from a checkpoint, and what was trained after
that is lost. A run that ended, and was continued later, was not interrupted: the time between is not counted.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from hvdtrain.history.json_lines import Line
from hvdtrain.history.json_values import text
from hvdtrain.history.starts import KeptLines, is_start
from hvdtrain.history.values import finite, seconds_in, step_of

_PARTS = ("data", "compute", "allreduce")
_MOST_RESTARTS: Final = 10_000  # that are told one by one


@dataclass
class Restart:
    """A start after an interruption.

    Attributes:
        step: the update after which it resumed.
        lost_steps: updates that were trained before and are not in the checkpoint; as many as were logged.
        seconds: from the last sign of the start before until training went on.
        cause: of the interruption, as the launcher tells it; "" where nobody does.
    """

    step: int
    lost_steps: int
    seconds: float
    cause: str


@dataclass
class _Start:
    """One start: its times by `time.time()`, and how far it came."""

    begin: float
    trained_from: float
    step: int
    cause: str
    last: float
    reached: int
    ended: bool = False


class Goodput:
    """Adds up lines in the order of time."""

    def __init__(self) -> None:
        self._start: _Start | None = None
        self._restarts: list[Restart] = []
        self._lost_steps = 0
        names = ("total", "start", "useful", "lost", "checkpoint", "validation", "recovery")
        self._seconds = dict.fromkeys(names, 0.0)

    def add(self, line: Line, counts: bool) -> None:
        """The next line, and whether it belongs to the weights that are there.

        What a line of an older version lacks counts as 0.
        """
        at = finite(line.get("time"))
        if is_start(line):
            self._begin(line, at or 0.0)
        elif self._start is not None:
            self._start.last = self._start.last if at is None else at
            self._add_to(self._start, line, counts)

    def result(self, now: float | None = None) -> dict[str, Any]:
        """What result.json says of a run's restarts and of its time. Seconds are of rank 0's clock.

        Args:
            now: `time.time()` at the end of the run; None: its last line was the end.
        """
        start, seconds = self._start, dict(self._seconds)
        if start is not None:
            seconds["total"] += max(0.0, max(start.last, now or 0.0) - start.begin)
        seconds["total"] += seconds["recovery"]
        share = seconds["useful"] / seconds["total"] if seconds["total"] > 0 else 0.0
        return {
            "share": round(share, 4),
            "restarts": [asdict(restart) for restart in self._restarts],
            "lost_steps": self._lost_steps,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }

    def _begin(self, line: Line, at: float) -> None:
        begun = finite(line.get("begun"))
        step = step_of(line) or 0
        start = _Start(at if begun is None else begun, at, step, text(line, "cause"), at, step)
        before, self._start = self._start, start
        self._seconds["start"] += max(0.0, start.trained_from - start.begin)
        if before is None:
            return
        self._seconds["total"] += max(0.0, before.last - before.begin)
        if not before.ended:
            self._interrupted(before, start)

    def _interrupted(self, before: _Start, start: _Start) -> None:
        lost = max(0, before.reached - start.step)
        self._lost_steps += lost
        self._seconds["recovery"] += max(0.0, start.begin - before.last)
        if len(self._restarts) < _MOST_RESTARTS:
            down = round(start.trained_from - before.last, 3)
            self._restarts.append(Restart(start.step, lost, down, start.cause))

    def _add_to(self, start: _Start, line: Line, counts: bool) -> None:
        event, split = line.get("event"), line.get("split")
        start.ended = start.ended or event == "ended"
        if split == "train" and (step := step_of(line)) is not None:
            start.reached = step
            self._seconds["useful" if counts else "lost"] += _longest(line.get("seconds"))
        elif split == "validation":
            self._seconds["validation"] += seconds_in(line)
        elif event == "checkpoint":
            self._seconds["checkpoint"] += seconds_in(line)


def goodput(lines: Iterable[Line], now: float) -> dict[str, Any]:
    """What result.json says of a run's restarts and of its time.

    Args:
        lines: of metrics.jsonl, in the order of time; iterated twice.
        now: `time.time()` at the end of the run.
    """
    sums, kept = Goodput(), KeptLines(lines)
    for line in lines:
        sums.add(line, kept.counts(line))
    return sums.result(now)


def _longest(ranks: Any) -> float:
    """The slowest rank's time between two lines."""
    try:
        longest = finite(max(rank["data"] + rank["compute"] + rank["allreduce"] for rank in ranks))
        if longest is not None and longest >= 0:
            return longest
    except (TypeError, KeyError, ValueError):
        pass  # of another version, or damaged: each number by itself
    rows = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    return max((sum(seconds_in(rank, part) for part in _PARTS) for rank in rows), default=0.0)
