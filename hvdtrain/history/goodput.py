"""Which lines of a run's metrics.jsonl still count, through all its restarts, and how much of its time trained these.

A start that ended without RunEnded was interrupted; the next one resumes from a checkpoint, and what was trained after
that is lost. A run that ended, and was continued later, was not interrupted: the time between is not counted. Nor is a
start after the end that finds nothing left to train.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from hvdtrain.history.reading import JsonLines, Line, finite, mapping, number, seconds_in, step_of, text
from hvdtrain.measured import STEP

_step_parts = itemgetter(*STEP)
_WORDS: Final = (b'"started"', b'"resumed"')
_NO_END: Final = 2**63 - 1
_MOST_RESTARTS: Final = 10_000  # that are listed one by one


def is_start(line: Line) -> bool:
    """Whether a line of metrics.jsonl is the first one of a start."""
    return line.get("event") in ("started", "resumed")


def start_lines(metrics: Path) -> JsonLines:
    """The lines of a metrics.jsonl that are starts, and few others; the rest is not parsed."""
    return JsonLines(metrics, _WORDS)


class KeptLines:
    """Tells of the lines of a metrics.jsonl, in their order, which count: later starts replace the others.

    A start resumes from a checkpoint, and what earlier starts have trained beyond is trained again. `lines`: of the
    same file, at least those of its starts. Of a start that is written later, all lines count.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        steps = array("q", (step_of(line) or 0 for line in lines if is_start(line)))
        steps.append(_NO_END)
        for place in range(len(steps) - 2, -1, -1):
            steps[place] = min(steps[place], steps[place + 1])
        self._last_steps, self._start = steps, 0  # which counts the starts that have come

    def counts(self, line: Line) -> bool:
        """Whether the next line belongs to the weights that are there. A line without a step does not."""
        if is_start(line):
            self._start = min(self._start + 1, len(self._last_steps) - 1)
        step = step_of(line)
        return step is not None and step <= self._last_steps[self._start]


@dataclass
class _Start:
    """One start: its times by `time.time()`, and how far it came."""

    begin: float
    trained_from: float
    step: int
    cause: str
    last: float
    reached: int
    restarts: int
    causes: list[str]
    ended: bool = False
    has_trained: bool = False


class Goodput:
    """Adds up lines in the order of time."""

    def __init__(self) -> None:
        self._start: _Start | None = None
        self._restarts: list[dict[str, Any]] = []
        self._before: tuple[_Start | None, dict[str, float]] = None, {}  # the newest start
        self._lost_steps = self._skipped = 0
        names = ("total", "start", "useful", "lost", "checkpoint", "validation", "recovery")
        self._seconds = dict.fromkeys(names, 0.0)

    def add(self, line: Line, counts: bool) -> None:
        """The next line, and whether it belongs to the weights that are there.

        What a line of an older version lacks counts as 0.
        """
        at = number(line, "time")
        if is_start(line):
            self._begin(line, at or 0.0)
        elif self._start is not None:
            self._start.last = self._start.last if at is None else at
            self._add_to(self._start, line, counts)
            if line.get("event") == "ended" and line.get("finished") is True:
                self._leave_out_idle()

    def result(self, now: float | None = None) -> dict[str, Any]:
        """What result.json says of a run's restarts and of its time. Seconds are of rank 0's clock. `now`:
        `time.time()` at the end of the run; None: its last line was the end."""
        start, seconds = self._start, dict(self._seconds)
        if start is not None:
            seconds["total"] += max(0.0, max(start.last, now or 0.0) - start.begin)
        # Where the clock was set back meanwhile, the parts are known better than the whole.
        parts = sum(seconds[name] for name in ("start", "useful", "lost", "checkpoint", "validation"))
        seconds["total"] = max(seconds["total"], parts) + seconds["recovery"]
        share = seconds["useful"] / seconds["total"] if seconds["total"] > 0 else 0.0
        return {
            "share": round(share, 4),
            "restarts": list(self._restarts),
            "lost_steps": self._lost_steps,
            "skipped_updates": self._skipped,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }

    def _leave_out_idle(self) -> None:
        """Of a training that had ended already, the newest start has trained nothing."""
        before, seconds = self._before
        if before is not None and before.ended and self._start is not None and not self._start.has_trained:
            self._start, self._seconds = before, seconds

    def _begin(self, line: Line, at: float) -> None:
        begun = number(line, "begun")
        step = step_of(line) or 0
        restarts, causes = int(number(line, "restarts") or 0), _causes(line)
        start = _Start(at if begun is None else begun, at, step, text(line, "cause"), at, step, restarts, causes)
        before, self._start = self._start, start
        self._before = before, dict(self._seconds)
        self._seconds["start"] += max(0.0, start.trained_from - start.begin)
        counted = 0 if before is None or before.restarts > restarts else before.restarts  # else another launcher's
        uncounted = restarts - counted
        if before is not None:
            self._seconds["total"] += max(0.0, before.last - before.begin)
            before.reached = max(before.reached, int(number(line, "reached") or 0))
            if not before.ended:
                self._interrupted(before, start, uncounted)
                uncounted -= 1
        for back in range(uncounted, 0, -1):  # none of these has trained
            self._add_restart(step, 0, 0.0, causes[-back] if back <= len(causes) else "")

    def _interrupted(self, before: _Start, start: _Start, uncounted: int) -> None:
        lost = max(0, before.reached - start.step)
        self._lost_steps += lost
        self._seconds["recovery"] += max(0.0, start.begin - before.last)
        down = round(start.trained_from - before.last, 3)
        first = start.causes[-uncounted] if 1 < uncounted <= len(start.causes) else start.cause
        self._add_restart(start.step, lost, down, first)

    def _add_restart(self, step: int, lost_steps: int, seconds: float, cause: str) -> None:
        """A start after an interruption, or one that did not come so far that it trained: it resumed after `step`, or
        the next one that trained did. Of lost steps, as many as are known: where rank 0 was killed, those of its last
        line. Seconds are from the last sign of the start before until training went on."""
        if len(self._restarts) < _MOST_RESTARTS:
            restart = {"step": step, "lost_steps": lost_steps, "seconds": seconds, "cause": cause}
            self._restarts.append(restart)

    def _add_to(self, start: _Start, line: Line, counts: bool) -> None:
        event, split = line.get("event"), line.get("split")
        start.ended = start.ended or event == "ended"
        if split == "train" and (step := step_of(line)) is not None:
            start.reached, start.has_trained = max(start.reached, step), True
            self._seconds["useful" if counts else "lost"] += _longest(line.get("seconds"))
            self._skipped += int(max(0.0, number(line, "skipped") or 0.0)) if counts else 0
        elif split == "validation":
            self._seconds["validation"] += seconds_in(line)
        elif event == "checkpoint":
            self._seconds["checkpoint"] += seconds_in(line)
        elif event == "failed":
            start.reached = max(start.reached, step_of(line) or 0)


def goodput(lines: Iterable[Line], now: float | None = None) -> dict[str, Any]:
    """`Goodput.result` of the lines of a metrics.jsonl, in the order of time, which are iterated twice."""
    sums, kept = Goodput(), KeptLines(lines)
    for line in lines:
        sums.add(line, kept.counts(line))
    return sums.result(now)


def share_is_known(found: Mapping[str, Any]) -> bool:
    """Whether what `goodput` has returned is of lines that say how long training took. Those of a loop of somebody's
    own do not."""
    seconds = found["seconds"]
    return bool(seconds["useful"] + seconds["lost"] > 0)


def _causes(line: Line) -> list[str]:
    """Of the restarts of one launcher until this start, the newest last."""
    causes = line.get("causes")
    causes = [cause for cause in causes if isinstance(cause, str)] if isinstance(causes, list) else []
    return causes or [text(line, "cause")]


def _longest(ranks: Any) -> float:
    """The slowest rank's time between two lines, from a list of all ranks or from their summary."""
    if isinstance(ranks, dict):
        return seconds_in(mapping(ranks, "step"), "max")
    try:
        longest = finite(max(map(sum, map(_step_parts, ranks))))
        if longest is not None and longest >= 0:
            return longest
    except (TypeError, KeyError, ValueError):
        pass  # of another version, or damaged: each number by itself
    rows = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    return max((sum(seconds_in(rank, part) for part in STEP) for rank in rows), default=0.0)
