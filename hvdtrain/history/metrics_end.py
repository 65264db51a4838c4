"""What a run has measured last, from the end of its metrics.jsonl."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hvdtrain.history.reading import UNREADABLE, json_object, last_lines, number, open_bounded, reason, text, whole
from hvdtrain.measured import LINE_KEYS, METRICS

_FIRST_LINE: Final = 2**16
_NO_MEASURES: Final = LINE_KEYS | {metric.name for metric in METRICS}
_KINDS: Final[Mapping[str, str]] = {
    **{"train": "train", "validation": "validation"},
    **dict.fromkeys(("started", "resumed"), "start"),
    **dict.fromkeys(("ended", "failed"), "end"),
}


@dataclass(frozen=True)
class MetricsEnd:
    """The last lines of each kind; None where there is none near the end of the file."""

    train: Mapping[str, Any] | None = None  # training values
    validation: Mapping[str, Any] | None = None  # validation values
    start: Mapping[str, Any] | None = None  # "started" or "resumed"; the other lines are later ones
    end: Mapping[str, Any] | None = None  # "ended" or "failed"
    time: float | None = None  # of the last line, by `time.time()` of rank 0's host
    problem: str = ""  # why there are no lines, where the file is there: a sentence without its end; else ""

    @property
    def is_empty(self) -> bool:
        """Whether no line is known."""
        return (self.train, self.validation, self.start, self.end) == (None,) * 4

    @property
    def step(self) -> int | None:
        """Updates done, as far as they are logged."""
        steps = [whole(line, "step") for line in (self.train, self.validation, self.start, self.end)]
        return max((step for step in steps if step is not None), default=None)


def read_metrics_end(path: Path) -> MetricsEnd:
    """Read the end of a metrics.jsonl. A file that is not there has no lines."""
    last: dict[str, dict[str, Any]] = {}
    at: float | None = None
    problem = ""
    try:
        for raw in last_lines(path):
            problem = "metrics.jsonl has no line that can be read"
            if "train" in last and raw.startswith(b'{"split": "train"'):
                continue  # which are most lines
            line = json_object(raw) or {}
            at = number(line, "time") if at is None else at
            kind = _KINDS.get(text(line, "split") or text(line, "event"))
            if kind is not None:
                last.setdefault(kind, line)
            if kind == "start":
                break
    except FileNotFoundError:
        pass
    except UNREADABLE as error:
        problem = f"metrics.jsonl {reason(error)}"
    return MetricsEnd(**last, time=at, problem="" if last else problem)


def measures(line: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The task's or the loop's own measures among the keys of a line of metrics.jsonl, in any order."""
    return {name: value for name, value in (line or {}).items() if name not in _NO_MEASURES}


def begun(path: Path) -> float | None:
    """When the run began, by `time.time()` of rank 0's host; None where metrics.jsonl does not say."""
    with suppress(*UNREADABLE), open_bounded(path) as file:
        line = json_object(file.readline(_FIRST_LINE))
        return number(line, "begun") or number(line, "time")
    return None
