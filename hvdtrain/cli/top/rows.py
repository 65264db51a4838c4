"""What `hvdtrain top` says of each rank, and which ranks come first where there is no room for all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from hvdtrain.history.heartbeats import Heard, Heartbeat
from hvdtrain.measured import METRICS
from hvdtrain.units import in_bytes, in_time

Mood = Literal["good", "waits", "bad", "over"]

_WORTH_TELLING: Final = 5.0  # seconds: shorter ones come and go with each step

_DOING: Final[Mapping[str, str]] = {
    "start": "starting",
    "data": "data",
    "step": "step",
    "validation data": "validation: data",
    "validation step": "validation",
    "checkpoint": "checkpoint",
    "end": "ending",
}

_LIVE: Final = {metric.live[1]: (metric.live[0], metric.kind) for metric in METRICS if metric.live is not None}
"""Head of a column → the key of a heartbeat, and what it counts."""

_SHOWN: Final[Mapping[str, Callable[[float], str]]] = {
    "number": "{:.4g}".format,
    "count": "{:,}".format,
    "bytes": in_bytes,
    "share": "{:.0%}".format,
}

COLUMNS: Final = ("step", "steps/s", *_LIVE, "last sign")
"""Of numbers, by their heads."""

GIVE_WAY: Final = (*reversed(_LIVE), "steps/s", "last sign", "step")
"""Columns that a narrow terminal does not show, the first one first."""


@dataclass(frozen=True)
class Row:
    """One rank."""

    rank: int
    host: str
    state: str  # what it does, for people
    mood: Mood  # how that is shown
    cells: Mapping[str, str] = field(default_factory=dict)  # what it says in `COLUMNS`, as far as it says something


def rows(heard: Mapping[int, Heard], size: int, most: int, unread: Collection[int] = ()) -> tuple[list[Row], int]:
    """At most `most` rows, and how many ranks have none. Args: `unread`: ranks whose heartbeats cannot be read.

    All ranks are in their order. Where there are too many, those that need a look come first: ranks that have failed,
    are silent, or are behind.
    """
    ranks: Sequence[int] = range(size)
    if size > most:
        ranks = sorted(ranks, key=lambda rank: _urgency(heard.get(rank)))[:most]
    return [_row(rank, heard.get(rank), rank in unread) for rank in ranks], max(0, size - most)


def _urgency(heard: Heard | None) -> tuple[float, ...]:
    """Smaller is more urgent."""
    if heard is None:
        return (1.0,)
    beat = heard.beat
    kind = 0.0 if beat.end == "failed" else 2.0 if heard.is_silent else 3.0
    behind = beat.step if beat.waits_in is None else beat.step + 0.5  # who waits in a step is further than who works
    slow = beat.steps_per_second if beat.steps_per_second is not None else 0.0
    return (kind, -heard.age if heard.is_silent else 0.0, behind, slow, beat.rank)


def _row(rank: int, heard: Heard | None, is_unread: bool) -> Row:
    if heard is None:
        return Row(rank, "", "its heartbeat cannot be read" if is_unread else "not heard of", "bad")
    state, mood = _state(heard)
    return Row(rank, heard.beat.host, state, mood, _cells(heard))


def _cells(heard: Heard) -> dict[str, str]:
    beat = heard.beat
    rate = {} if beat.steps_per_second is None or beat.end else {"steps/s": f"{beat.steps_per_second:,.1f}"}
    live = {head: (kind, getattr(beat, key)) for head, (key, kind) in _LIVE.items()}
    return {
        "step": f"{beat.step:,}",
        **rate,
        **{head: _SHOWN[kind](value) for head, (kind, value) in live.items() if value is not None},
        "last sign": f"{in_time(heard.age)} ago",
    }


def _state(heard: Heard) -> tuple[str, Mood]:
    beat = heard.beat
    if beat.end == "failed":
        return f"failed: {beat.error}" if beat.error else "failed", "bad"
    if beat.end:
        return "ended", "over"
    doing = _doing(beat)
    if heard.is_silent:
        return f"silent for {in_time(heard.age)} (was: {doing})", "bad"
    if beat.seconds >= _WORTH_TELLING:
        doing += f" for {in_time(beat.seconds)}"
    if beat.reads and beat.seconds >= _WORTH_TELLING:
        doing += f", {beat.reads}"
    return doing, "waits" if beat.waits_in is not None else "good"


def _doing(beat: Heartbeat) -> str:
    if beat.waits_in is not None:
        return f"waiting in {beat.waits_in}"
    last = f", last collective {beat.collective}" if beat.collective else ""
    return f"{_DOING.get(beat.phase, beat.phase)}{last}"


def size_of(heard: Mapping[int, Heard], known: int | None) -> int:
    """How many ranks there are, as heartbeats tell, or as is `known` otherwise; 0 if nothing tells."""
    return next((each.beat.size for each in heard.values()), known or 0)


def first_of(heard: Mapping[int, Heard]) -> Heartbeat | None:
    """The heartbeat of the lowest rank, for what all ranks say alike."""
    return next((heard[rank].beat for rank in sorted(heard)), None)
