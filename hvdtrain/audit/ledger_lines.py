"""The lines of an audit's ledger that led to the weights that are there."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from data_sharding.atomic import final_path
from hvdtrain.errors import UsageError

Line = dict[str, Any]
_KEYS: Final = {
    "started": {"step", "steps_per_epoch", "data"},
    "segment": {"first", "end", "world_size", "damaged", "file"},
}
_MOST_EMPTY: Final = 1000  # epochs without a segment, which are reported one by one


class _Link(NamedTuple):
    """A segment, and the one before it in the training that it belongs to."""

    segment: Line
    before: "_Link | None"


def replay(ledger: Path) -> tuple[Line, list[Line]]:
    """The last start, and the segments that led to the current position, in the order of steps.

    A start at step s resumes from the checkpoint of step s, and keeps the segments up to the newest that ends there;
    what was trained beyond is another line of training, to which a later start may return. Raises UsageError: the
    ledger does not begin with a start, or has an unreadable line.
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
        raise damaged_ledger(ledger, "it names no start of the run")
    segments = []
    while current is not None:
        segments.append(current.segment)
        current = current.before
    return started, segments[::-1]


def check_epochs(ledger: Path, per_epoch: int, segments: list[Line], epochs: int) -> None:
    """Raise UsageError where a segment has more steps than what is left of its epoch, or most epochs have none: no run
    writes that, and each of any number of epochs would be looked at."""
    for segment in segments:
        if segment["end"] > (segment["first"] // per_epoch + 1) * per_epoch:
            at = f"steps {segment['first']} to {segment['end']}"
            raise damaged_ledger(ledger, f"a segment has {at}, and an epoch has {per_epoch}")
    have = len({segment["first"] // per_epoch for segment in segments})
    if epochs > have + _MOST_EMPTY:
        raise damaged_ledger(ledger, f"it has segments of {have} of {epochs} epochs")


def _lines(ledger: Path) -> list[Line]:
    """All whole lines: one that was being written when its process was killed lacks its end, and never counted."""
    lines = []
    try:
        texts = final_path(ledger).read_text(errors="replace").split("\n")[:-1]
    except OSError as error:
        raise damaged_ledger(ledger, error.strerror or str(error)) from error
    for number, text in enumerate(texts, start=1):
        line = _parsed(text)
        if line is None:
            raise damaged_ledger(ledger, f"line {number} cannot be read")
        lines.append(line)
    return lines


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    event = line.get("event") if isinstance(line, dict) else None
    if not isinstance(event, str) or event not in _KEYS or not _KEYS[event] <= line.keys():
        return None
    return line if (_is_start(line) if event == "started" else _is_segment(line)) else None


def _is_start(line: Line) -> bool:
    return _is_count(line["step"]) and _is_count(line["steps_per_epoch"], 1) and isinstance(line["data"], str)


def _is_segment(line: Line) -> bool:
    file, damaged = line["file"], line["damaged"]
    return (
        _is_count(line["first"])
        and _is_count(line["end"], line["first"])
        and _is_count(line["world_size"], 1)
        and isinstance(file, str)
        and Path(file).name == file  # in the audit's folder
        and isinstance(damaged, list)
        and all(map(_is_count, damaged))
    )


def _is_count(value: object, least: int = 0) -> bool:
    """No truth value, no float."""
    return type(value) is int and value >= least


def damaged_ledger(ledger: Path, how: str) -> UsageError:
    return UsageError(
        f"{ledger} is damaged: {how}.", "It no longer says what the run used.", "restore the audit folder."
    )
