"""The starts of a run, and which of the lines that each has written still count."""

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hvdtrain.history.lines import JsonLines, Line
from hvdtrain.history.reading import step_of

_WORDS: Final = (b'"started"', b'"resumed"')
_NO_END: Final = 2**63 - 1


def is_start(line: Line) -> bool:
    """Whether a line of metrics.jsonl is the first one of a start."""
    return line.get("event") in ("started", "resumed")


def start_lines(metrics: Path) -> JsonLines:
    """The lines of a metrics.jsonl that are starts, and few others; the rest is not parsed."""
    return JsonLines(metrics, _WORDS)


class KeptLines:
    """Tells of the lines of a metrics.jsonl, in their order, which count: later starts replace the others.

    A start resumes from a checkpoint, and what earlier starts have trained beyond is trained again.

    Args:
        lines: of the same file, at least those of its starts. Of a start that is written later, all lines count.
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
