"""What kind of thing keeps a rank from its work: the one that explains most of the time that it needs more than others.

Each kind has counters of its own, as seconds for which it can have stopped the process. A kind that explains
less than a third is not a cause; then the rank is slow in reading its input, or for a reason that Linux does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Final, Literal, NamedTuple

Cause = Literal[
    "cpu throttled",
    "cpu stolen",
    "cpu contention",
    "swapping",
    "slow disk",
    "slow input",
    "slow link",
    "unknown",
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
    retransmitted: float = 0.0  # packets that were sent again, and all that were sent
    segments: float = 0.0  # packets that were sent again, and all that were sent
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
