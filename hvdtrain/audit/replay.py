"""Which lines of an audit's ledger count: those that led to the weights that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UsageError

Line = dict[str, Any]

_KEYS = {
    "started": {"step", "steps_per_epoch", "data"},
    "segment": {"first", "end", "world_size", "damaged", "file"},
}


class _Link(NamedTuple):
    """A segment, and the one before it in the training that it belongs to."""

    segment: Line
    before: _Link | None


def replay(ledger: Path) -> tuple[Line, list[Line]]:
    """The last start, and the segments that led to where training stands, in the order of steps.

    A start at step s takes up the checkpoint of step s, and with it the segments up to the newest one that ends there;
    what was trained beyond is another line of training, to which a later start may return.

    Raises:
        UsageError: the ledger does not begin with a start, or has a line that is none.
    """
    started: Line | None = None
    newest: dict[int, _Link] = {}
    current: _Link | None = None
    for line in _lines(ledger):
        if line["event"] == "started":
            started, current = line, newest.get(line["step"])
        else:
            current = newest[line["end"]] = _Link(line, current)
    if started is None:
        raise _damaged(ledger, "it names no start of the run")
    segments = []
    while current is not None:
        segments.append(current.segment)
        current = current.before
    return started, segments[::-1]


def _lines(ledger: Path) -> list[Line]:
    """All whole lines: one that was being written when its process was killed lacks its end, and never counted."""
    lines = []
    for number, text in enumerate(ledger.read_text(errors="replace").split("\n")[:-1], start=1):
        line = _parsed(text)
        if line is None:
            raise _damaged(ledger, f"line {number} cannot be read")
        lines.append(line)
    return lines


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    known = isinstance(line, dict) and _KEYS.get(line.get("event", "")) or None
    return line if known is not None and known <= line.keys() else None


def _damaged(ledger: Path, how: str) -> UsageError:
    return UsageError(
        f"{ledger} is damaged: {how}.", "It no longer says what the run used.", "restore the audit folder."
    )
