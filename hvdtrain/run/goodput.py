"""How much of a run's time trained weights that count, from the lines of its metrics.jsonl: through all its restarts.

A start that ended without RunEnded was interrupted; the next one resumes from a checkpoint, and what was trained after
that is lost. A run that ended, and was continued later, was not interrupted: the time between is not counted.
"""

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

_PARTS = ("data", "compute", "allreduce")


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
    """One start: its times by `time.time()`, and its lines of training as (step, seconds)."""

    begin: float
    trained_from: float
    step: int
    cause: str
    last: float
    ended: bool = False
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def trained(self, first: int, end: float) -> float:
        """Seconds of the updates after `first`, up to `end`."""
        return sum(s for step, s in zip(self.steps, self.seconds, strict=True) if first < step <= end)


def goodput(lines: Iterable[dict[str, Any]], now: float) -> dict[str, Any]:
    """What result.json says of a run's restarts and of its time. Seconds are of rank 0's clock.

    Args:
        lines: of metrics.jsonl, in the order of time.
        now: `time.time()` at the end of the run.
    """
    restarts: list[Restart] = []
    seconds = dict.fromkeys(("total", "start", "useful", "lost", "checkpoint", "validation", "recovery"), 0.0)
    starts = list(_starts(lines, seconds))
    if starts:
        starts[-1].last = max(starts[-1].last, now)
    for before, start in pairwise(starts):
        reached = max(before.step, before.steps[-1] if before.steps else 0)
        if not before.ended:
            down = start.trained_from - before.last
            restarts.append(Restart(start.step, max(0, reached - start.step), round(down, 3), start.cause))
            seconds["recovery"] += max(0.0, start.begin - before.last)
    counts_until = float("inf")
    for start in reversed(starts):
        _add(seconds, start, counts_until)
        counts_until = min(counts_until, start.step)
    seconds["total"] += seconds["recovery"]
    share = seconds["useful"] / seconds["total"] if seconds["total"] > 0 else 0.0
    return {
        "share": round(share, 4),
        "restarts": [asdict(restart) for restart in restarts],
        "lost_steps": sum(restart.lost_steps for restart in restarts),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def _add(seconds: dict[str, float], start: _Start, counts_until: float) -> None:
    useful = start.trained(start.step, counts_until)
    seconds["useful"] += useful
    seconds["lost"] += start.trained(start.step, float("inf")) - useful
    seconds["start"] += max(0.0, start.trained_from - start.begin)
    seconds["total"] += max(0.0, start.last - start.begin)


def _starts(lines: Iterable[dict[str, Any]], seconds: dict[str, float]) -> Iterator[_Start]:
    """Each start once all its lines are read; waits for checkpoints and validations are added to `seconds`."""
    start: _Start | None = None
    for line in lines:
        event, at = line.get("event"), float(line.get("time", 0.0))
        if event in ("started", "resumed"):
            if start is not None:
                yield start
            start = _Start(float(line.get("begun", at)), at, int(line["step"]), str(line.get("cause", "")), at)
        elif start is not None:
            start.last = at
            start.ended = start.ended or event == "ended"
            if line.get("split") == "train":
                start.steps.append(int(line["step"]))
                start.seconds.append(max(sum(rank[part] for part in _PARTS) for rank in line["seconds"]))
            elif line.get("split") == "validation":
                seconds["validation"] += line["seconds"]
            elif event == "checkpoint":
                seconds["checkpoint"] += line["seconds"]
    if start is not None:
        yield start


def lines_of(metrics: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a metrics.jsonl, one at a time; a killed run may have left half of one."""
    if not metrics.exists():
        return
    with metrics.open(encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)
