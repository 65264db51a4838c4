"""A rank or a link that keeps the others waiting, in words for people and as JSON for programs, and its kind of cause.

That is the kind of thing which explains most of the time that the rank needs more than others. Each kind has counters
of its own, as seconds for which it can have stopped the process. A kind that explains less than a third is not a cause;
then the rank is slow in reading its input, or for a reason that Linux does not count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import add
from typing import Any, Final, Literal, NamedTuple, get_args

Cause = Literal[
    "cpu throttled", "cpu stolen", "cpu contention", "swapping", "slow disk", "slow input", "slow link", "unknown"
]

_EXPLAINED: Final = 1 / 3  # of the excess
_OF_INPUT: Final = 0.5  # of the excess must be waiting for data, where the input is the cause
_FAULTS_PER_SECOND: Final = 5.0  # below, no process is slowed down by swapping

_FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu throttled": ("throttled", "cpu"),
    "cpu stolen": ("stolen", "cpu"),
    "cpu contention": ("queued", "cpu"),
    "swapping": ("major_faults", "swapped", "memory_stall"),
    "slow disk": ("io_stall", "disk_wait", "read_bytes"),
    "slow input": ("io_stall", "cpu", "read_bytes"),
    "slow link": ("send_busy", "sent_bytes", "round_trip"),
    "unknown": ("cpu", "queued", "io_stall"),
}

_NUMBERS: Final = ("share_of_time_others_waited", "slower_by", "since_step", "until_step")
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "cpu": ("CPU seconds a second:", ".2f"),
    "queued": ("share of time ready without a processor:", ".0%"),
    "stolen": ("share of processor time stolen:", ".0%"),
    "throttled": ("share of time throttled:", ".0%"),
    "major_faults": ("pages a second waited for:", ".0f"),
    "swapped": ("pages a second from swap:", ".0f"),
    "memory_stall": ("share of time stalled for memory:", ".0%"),
    "io_stall": ("share of time the host stalled for disks:", ".0%"),
    "disk_wait": ("share of time waiting for disks:", ".0%"),
    "read_bytes": ("bytes a second from disks:", ".3g"),
    "send_busy": ("share of time its connection was busy:", ".0%"),
    "sent_bytes": ("bytes a second sent:", ".3g"),
    "round_trip": ("round trip in seconds:", ".2g"),
}


class Pressure(NamedTuple):
    """What has kept a process from its work over `wall` seconds, as Linux counts it. Times are in seconds."""

    wall: float = 0.0  # the time that is looked at; 0: nothing is known
    cpu: float = 0.0  # that the process has computed, over all of its threads
    queued: float = 0.0  # that its busiest thread was ready to compute and had no processor
    # for which the hypervisor took processors of this host away, as a share of the busy time, times `wall`
    stolen: float = 0.0
    throttled: float = 0.0  # that the limit of a cgroup has stopped the process
    major_faults: float = 0.0  # pages that the process had to wait for
    swapped: float = 0.0  # pages that this host has read back from swap
    memory_stall: float = 0.0  # in which a task of the host, or of the cgroup, waited for memory
    io_stall: float = 0.0  # in which a task of the host, or of the cgroup, waited for a disk
    disk_wait: float = 0.0  # that the process itself waited for disks; Linux counts that where task_delayacct is on
    read_bytes: float = 0.0  # that the process had read from disks
    sent_bytes: float = 0.0  # that other hosts have confirmed on the process's connections
    send_busy: float = 0.0  # in which the busiest of these connections had something to send or to be confirmed
    retransmitted: float = 0.0  # packets that were sent again
    segments: float = 0.0  # all packets that were sent
    round_trip: float = 0.0  # on the slowest of these connections, at the last look

    def plus(self, other: "Pressure") -> "Pressure":
        """Over both times, one after the other."""
        both = Pressure(*map(add, self, other))
        return both._replace(round_trip=max(self.round_trip, other.round_trip))

    def share(self, name: str) -> float:
        """The attribute as a share of the wall time; events as a number a second."""
        return float(getattr(self, name)) / self.wall if self.wall > 0 else 0.0


COLUMNS = Pressure._fields

NOTHING = Pressure()


@dataclass(frozen=True, slots=True)
class Excess:
    """By how many seconds a rank's work takes longer than that of the others, in a time of `seconds`."""

    seconds: float
    own: float  # of its work
    data: float  # of this, waiting for the loader


def cause_of(excess: Excess, pressure: Pressure, others: Pressure) -> Cause:
    """The kind of cause.

    Args:
        excess: of the rank that is slow.
        pressure: of this rank.
        others: of a typical other rank; what that has too is not a cause.
    """
    kinds = _explained(excess, pressure, others)
    cause, seconds = max(kinds.items(), key=lambda kind: kind[1])
    if seconds >= _EXPLAINED * excess.own:
        return cause
    return "slow input" if _is_input(excess) else "unknown"


def facts_of(cause: Cause, pressure: Pressure) -> dict[str, float]:
    """The counters of this kind of cause: shares of the time, and numbers a second."""
    facts = {name: round(pressure.share(name), 3) for name in _FACTS[cause] if name != "round_trip"}
    return facts | ({"round_trip": round(pressure.round_trip, 6)} if cause == "slow link" else {})


def _explained(excess: Excess, here: Pressure, others: Pressure) -> dict[Cause, float]:
    """Seconds for which each kind can have stopped the process, beyond those of a typical other rank."""

    def beyond(name: str) -> float:
        return max(0.0, min(here.share(name), 1.0) - min(others.share(name), 1.0)) * excess.seconds

    # A rank that does more waits more for a processor, on the same host: what counts is the wait for the same work.
    work = here.share("cpu") / others.share("cpu") if here.cpu > 0 and others.cpu > 0 else 1.0
    queued = max(0.0, min(here.share("queued"), 1.0) - others.share("queued") * work) * excess.seconds
    swaps = here.swapped > 0 and here.share("major_faults") >= _FAULTS_PER_SECOND
    # All ranks of a host have the same of this; only the one whose input comes from that disk waits for data.
    stalled = here.share("io_stall") * excess.seconds if _is_input(excess) else 0.0
    return {
        "cpu throttled": beyond("throttled"),
        "cpu stolen": beyond("stolen"),
        "cpu contention": max(0.0, queued - beyond("throttled")),  # the queue of a stopped group counts too
        "swapping": here.share("memory_stall") * excess.seconds if swaps else 0.0,
        "slow disk": 0.0 if swaps else max(beyond("disk_wait"), stalled),
    }


def _is_input(excess: Excess) -> bool:
    return excess.data >= _OF_INPUT * excess.own


@dataclass(frozen=True)
class Straggler:
    """A rank, or a link between hosts, for which the others wait."""

    rank: int | None  # which one; None: a link, and it cannot be told whose
    host: str  # where it runs, "" where that is not known
    share_of_time_others_waited: float  # of the others' time, in the windows in which it was slow
    slower_by: float  # by which share its own time is longer than the median of the others'; 0 for a link
    cause: Cause  # what kind of thing makes it slow
    facts: Mapping[str, float]  # what Linux counted of that: shares of the time, and numbers a second
    since_step: int  # the first update of the time in which it was slow
    until_step: int  # the last one

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Straggler | None":
        """What `dataclasses.asdict` made of one, read from a file; None where that is not what it holds."""
        values: dict[str, Any] = {field.name: line.get(field.name) for field in fields(cls)}
        rank, facts = values["rank"], values["facts"]
        if not isinstance(values["host"], str) or values["cause"] not in get_args(Cause) or not isinstance(facts, dict):
            return None
        numbers = [*(values[name] for name in _NUMBERS), *facts.values(), *([] if rank is None else [rank])]
        if not all(map(_is_number, numbers)):
            return None
        return cls(**{**values, "facts": {name: value for name, value in facts.items() if name in _WORDS}})

    @property
    def sentence(self) -> str:
        """For people."""
        waited = f"{self.share_of_time_others_waited:.0%} of their time"
        known = [(*_WORDS[name], value) for name, value in self.facts.items() if value]
        facts = ", ".join(f"{text} {value:{form}}" for text, form, value in known)
        counted = f" ({facts})" if facts else ""
        if self.cause == "slow link":
            whose = "the network" if self.rank is None else f"the network of {self._who}"
            return f"All ranks wait {waited} for {whose}: slow link{counted}."
        cause = "the cause is not known" if self.cause == "unknown" else f"the cause is: {self.cause}"
        who = self._who[0].upper() + self._who[1:]
        return f"{who} is slow by {self.slower_by:.0%}, and the others wait {waited} for it; {cause}{counted}."

    @property
    def _who(self) -> str:
        return f"rank {self.rank}" + (f" on {self.host}" if self.host else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
