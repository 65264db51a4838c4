"""The file of a trace, in Chrome's format, which Perfetto reads too: a process for each rank, a thread for each lane.

Each rank makes the lines of its own events, on rank 0's clock; rank 0 puts them together, without reading them.
Format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from data_sharding.atomic import atomic_file

_LEVEL: Final = 6  # of compression
_MOST: Final = 500_000  # events of a process. What follows is left out: a viewer could not show it
_MOST_OF_ALL: Final = 4_000_000
"""Events of all ranks: for a moment each rank holds the lines of all, some 15 bytes an event."""


def most_of_each(ranks: int) -> int:
    """How many events of each of so many ranks one file can have."""
    return min(_MOST, _MOST_OF_ALL // ranks)


class LaneEvent(NamedTuple):
    """Attributes: `begin`, since the trace's, and `duration` are microseconds; no duration is an instant."""

    lane: str
    name: str
    begin: float
    duration: float


def lines_of(process: int, name: str, lanes: Sequence[str], events: Iterable[LaneEvent], most: int = _MOST) -> bytes:
    """Compressed lines of one process, each of them with a comma at its end; those of `lanes` come first, the others in
    the order of their first event. Of `events` there are `most`; those before the trace's beginning are left out."""
    numbers = {lane: number for number, lane in enumerate(lanes)}
    shown = [event for event, _ in zip(events, range(most), strict=False) if event.begin >= 0]
    for event in shown:
        numbers.setdefault(event.lane, len(numbers))
    lines = [*_names(process, name, numbers), *(_line(process, numbers[event.lane], event) for event in shown)]
    return gzip.compress("".join(f"{json.dumps(line)},\n" for line in lines).encode(), _LEVEL)


def write_trace(file: Path, parts: Iterable[bytes], about: Mapping[str, Any]) -> None:
    """Put together what `lines_of` has made. Args: `about`: for people who look into the file. Raises OSError: it
    cannot be written."""
    with atomic_file(file) as whole, gzip.open(whole, "wb", _LEVEL) as stream:
        stream.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        for part in parts:
            stream.write(gzip.decompress(part))
        # The format has no comma after the last event, and each line has one.
        stream.write(f'{{"ph": "M", "pid": 0, "name": "about", "args": {json.dumps(about)}}}]}}\n'.encode())


def _names(process: int, name: str, lanes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for lane, number in lanes.items():
        yield {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": lane}}
        yield {"ph": "M", "pid": process, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _line(process: int, lane: int, event: LaneEvent) -> dict[str, Any]:
    line = {"name": event.name, "pid": process, "tid": lane, "ts": round(event.begin, 3)}
    if event.duration:
        return {**line, "ph": "X", "dur": round(event.duration, 3)}
    return {**line, "ph": "i", "s": "t"}
