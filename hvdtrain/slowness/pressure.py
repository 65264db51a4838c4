"""What has kept a process from its work for some time, as Linux counts it. Counts that Linux does not have are 0."""

from operator import add
from typing import NamedTuple


class Pressure(NamedTuple):
    """Of one process and its host, over `wall` seconds. Times are in seconds."""

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
