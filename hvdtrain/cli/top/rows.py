"""What `hvdtrain top` says of each rank, and which ranks come first where there is no room for all."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hvdtrain.history.heartbeats import Heard, Heartbeat
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


@dataclass(frozen=True)
class Row:
    """One rank.

    Attributes:
        state: what it does, for people.
        mood: how that is shown.
        cells: step, steps/s, memory, GPU memory, GPU use, age of the heartbeat; "" where it tells nothing.
    """

    rank: int
    host: str
    state: str
    mood: Mood
    step: str = ""
    rate: str = ""
    memory: str = ""
    gpu_memory: str = ""
    gpu_use: str = ""
    age: str = ""


def rows(heard: Mapping[int, Heard], size: int, most: int, unread: Collection[int] = ()) -> tuple[list[Row], int]:
    """At most `most` rows, and how many ranks have none. Args: `unread`: ranks whose heartbeats cannot be read.

    All ranks are in their order. Where there are too many, those that need a look come first: ranks that have failed,
    are silent, or are behind.
    """
    ranks: Sequence[int] = range(size)
    if size > most:
        ranks = sorted(ranks, key=lambda rank: _urgency(heard.get(rank)))[:most]
    found = [_row(rank, heard.get(rank), rank in unread) for rank in ranks]
    return found, max(0, size - most)


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
    beat = heard.beat
    return Row(
        rank,
        beat.host,
        *_state(heard),
        step=f"{beat.step:,}",
        rate="" if beat.steps_per_second is None or beat.end else f"{beat.steps_per_second:,.1f}",
        memory=_size(beat.memory),
        gpu_memory=_size(beat.gpu_memory),
        gpu_use="" if beat.gpu_use is None else f"{beat.gpu_use:.0%}",
        age=in_time(heard.age),
    )


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


def _size(count: int | None) -> str:
    return "" if count is None else in_bytes(count)


def size_of(heard: Mapping[int, Heard], known: int | None) -> int:
    """How many ranks there are, as heartbeats tell, or as is `known` otherwise; 0 if nothing tells."""
    told = (one.beat.size for one in heard.values())
    return next(told, known or 0)


def first_of(heard: Mapping[int, Heard]) -> Heartbeat | None:
    """The heartbeat of the lowest rank, for what all ranks tell alike."""
    return next((heard[rank].beat for rank in sorted(heard)), None)
