"""A run's metrics.jsonl, of any size and version: its curves, its times, and what happened, in bounded memory.

What later starts have trained again is left out of curves, as it is not in the weights; its time is counted.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hvdtrain.history.curve import Curve
from hvdtrain.history.goodput import Goodput, KeptLines, start_lines
from hvdtrain.history.ranks import RankTimes
from hvdtrain.history.reading import UNREADABLE, JsonLines, Line, Progress, finite, mapping, number, reason, step_of
from hvdtrain.history.run_events import CheckpointTotals, RunEvents
from hvdtrain.history.summarized_ranks import SummarizedTimes
from hvdtrain.measured import LINE_KEYS, METRICS

SPEED: Final = "samples_per_second"
_NO_CURVES: Final = LINE_KEYS | {metric.name for metric in METRICS if metric.kind == "count"}
_BUILT_IN: Final = {metric.name for metric in METRICS}
_MOST_CURVES, _LONGEST_NAME, _MOST_STRAGGLERS = 64, 100, 100


@dataclass
class MetricsHistory:
    """What the lines say; every part may be empty."""

    # curves by step, of every number in lines of training: measures, "lr", "grad_norm", SPEED and others; of what each
    # rank has ("memory"), the largest
    training: dict[str, Curve] = field(default_factory=dict)
    validation: dict[str, Curve] = field(default_factory=dict)  # the same of validations
    is_cut: bool = False  # whether there are more measures, which have no curves
    sets: dict[str, None] = field(default_factory=dict)  # names of sets that were validated on, where they have names
    # SPEED by milliseconds since the first line, of lost work too; empty where lines have no times
    speed: Curve = field(default_factory=Curve)
    ranks: RankTimes = field(default_factory=RankTimes)  # where time went
    # the same, where lines have summaries of all ranks
    summaries: SummarizedTimes = field(default_factory=SummarizedTimes)
    goodput: Goodput = field(default_factory=Goodput)  # of restarts and time
    events: RunEvents = field(default_factory=RunEvents)  # starts, stops, failures
    checkpoints: CheckpointTotals = field(default_factory=CheckpointTotals)  # how many, and what they cost
    stragglers: list[Line] = field(default_factory=list)  # lines of ranks and links that have kept others waiting
    samples: int = 0  # that were trained on
    timed: tuple[float, float] = (0.0, 0.0)  # samples and seconds of the lines with a speed, of lost work too
    masked: int = 0  # samples that were left out as damaged
    skipped: int = 0  # updates
    lines: int = 0  # how many there are
    began: float | None = None  # `time.time()` of the first line; None where lines have no times
    ended: float | None = None  # the same of the last line
    last_step: int = 0  # the last one that counts
    problems: tuple[str, ...] = ()  # what could not be read, in sentences

    def add(self, line: Line, counts: bool) -> None:
        """The next line, and whether it belongs to the weights that are there."""
        self.lines += 1
        at = number(line, "time")
        if at is not None:
            self.began, self.ended = at if self.began is None else self.began, at
        self.goodput.add(line, counts)
        step, split = step_of(line), line.get("split")
        if step is None:
            return
        if counts:
            self.last_step = step
        if split == "train":
            self._add_training(line, step, counts, at)
        elif split == "validation":
            self.ranks.add_validation(line.get("rank_seconds"))
            self.summaries.add_validation(line.get("rank_seconds"))
            if counts:
                self.is_cut |= not _add_measures(self.validation, line, step)
                self.sets |= dict.fromkeys(list(mapping(line, "sets"))[: _MOST_CURVES - len(self.sets)])
        elif "event" in line:
            self.events.add(line, step, at)
            self.checkpoints.add(line)
            if line["event"] == "straggler" and len(self.stragglers) < _MOST_STRAGGLERS:
                self.stragglers.append(line)

    @property
    def mean_speed(self) -> float | None:
        """Samples in a second of training; lines of few samples count less. None where no line has a speed."""
        samples, seconds = self.timed
        return samples / seconds if seconds > 0 else None

    def _add_training(self, line: Line, step: int, counts: bool, at: float | None) -> None:
        speed = number(line, SPEED)
        if at is not None and self.began is not None and speed is not None:
            self.speed.add(max(0, int((at - self.began) * 1000)), speed)
        if speed is not None and speed > 0:
            samples = _count(line, "samples")
            self.timed = self.timed[0] + samples, self.timed[1] + samples / speed
        self.ranks.add(line.get("seconds"))
        self.summaries.add(line.get("seconds"))
        if counts:
            self.is_cut |= not _add_measures(self.training, line, step)
            self.samples += _count(line, "samples")
            self.masked += _count(line, "masked")
            self.skipped += _count(line, "skipped")


def read_metrics(folder: Path, progress: Progress | None = None) -> MetricsHistory:
    """Read the metrics.jsonl of the run in `folder`: an empty history with a problem where that cannot be done."""
    path, history = folder / "metrics.jsonl", MetricsHistory()
    if not path.exists():
        history.problems = ("metrics.jsonl is missing: there are no curves and no times.",)
        return history
    lines = JsonLines(path, progress=progress)
    problems = []
    try:
        kept = KeptLines(start_lines(path))
        for line in lines:
            history.add(line, kept.counts(line))
    except UNREADABLE as error:
        problems.append(f"metrics.jsonl {reason(error)}.")
    problems += lines.problems()
    if not history.lines and not problems:
        problems.append("metrics.jsonl is empty.")
    history.problems = tuple(problems)
    return history


def _add_measures(curves: dict[str, Curve], line: Line, step: int) -> bool:
    """Returns whether there was room for all of them."""
    has_room = True
    for name, value in line.items():
        if name in _NO_CURVES or len(name) > _LONGEST_NAME:
            continue
        value = value.get("max") if isinstance(value, dict) and "max" in value else value  # of what each rank has
        measured = finite(value)
        if measured is None and value is not None and not isinstance(value, float):
            continue  # else it is NaN or infinite, which JSON does not have
        curve = curves.get(name)
        if curve is None:
            if name not in _BUILT_IN and len(curves) - sum(known in curves for known in _BUILT_IN) == _MOST_CURVES:
                has_room = False
                continue
            curve = curves[name] = Curve()
        if measured is None:
            curve.miss(step)
        else:
            curve.add(step, measured)
    return has_room


def _count(line: Line, key: str) -> int:
    return int(max(0.0, number(line, key) or 0.0))
