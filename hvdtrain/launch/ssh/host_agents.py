"""The agents of all hosts that a job may use: started, called again where they were lost, and sent away."""

import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.processes.orphan_reaper import SWEEP_SECONDS
from hvdtrain.launch.ssh.agent_client import ask_at_once
from hvdtrain.launch.ssh.line import Line
from hvdtrain.launch.ssh.link import HostLink
from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.open_files import allow_open_files

_LEAVE_SECONDS = SWEEP_SECONDS + 2.0
_FILES_OF_A_HOST = 6  # of its line and its link
_AGAIN_SECONDS = 10.0  # between two attempts to reach a host that is missing
_LOOK_SECONDS = 0.5  # between two looks whether it has answered


class Reach(Protocol):
    """How a launcher reaches hosts, by ssh for one."""

    @property
    def link_seconds(self) -> float:
        """Of silence, after which a host counts as lost, and its agent has killed its workers."""

    def line_to(self, host: str) -> Line:
        """Start an agent on that host. Raises UsageError: nothing can be started here."""


@dataclass(eq=False)
class HostAgents(AbstractContextManager["HostAgents"]):
    """One agent for each host that the job may use.

    A signal in `inbox` ends every wait. `links` maps hosts to the agents that are there, `failures` others to the
    reason. No start uses the hosts in `left_out`, of which a worker has computed wrongly.
    """

    hosts: Sequence[Host]
    reach: Reach
    inbox: SignalInbox | None
    seconds: float

    def __post_init__(self) -> None:
        self.links: dict[str, HostLink] = {}
        self.failures: dict[str, str] = {}
        self.left_out: set[str] = set()
        self._coming: dict[str, HostLink] = {}
        self.dismissed: set[HostLink] = set()  # whose agents were sent away: they have no workers, although they end
        self._again_at = 0.0
        self.safe_at = 0.0  # before this time of the monotonic clock, workers of a host that was lost may still run
        self.use(self.hosts)

    def __exit__(self, *exception: object) -> None:
        self._give_up_coming()
        for link in self.links.values():
            link.hang_up()  # all first: they end at the same time
        deadline = time.monotonic() + _LEAVE_SECONDS
        for link in self.links.values():
            link.close(max(0.0, deadline - time.monotonic()))
        self.links.clear()

    @property
    def usable(self) -> list[Host]:
        """The hosts that are there, without those that are left out."""
        return [host for host in self.hosts if host.name in self.links and host.name not in self.left_out]

    def use(self, hosts: Sequence[Host]) -> None:
        """From now on the job may use these hosts. New ones are called at once; others keep agents until dismissed."""
        allow_open_files(_FILES_OF_A_HOST * len(hosts) + sum(host.slots for host in hosts))  # workers connect, too
        before, named = {host.name for host in self.hosts}, [host.name for host in hosts]
        self.hosts = hosts
        self.failures = {name: why for name, why in self.failures.items() if name in named}
        for name in [name for name in self._coming if name not in named]:
            self._coming.pop(name).close()
        if not before.issuperset(named):
            self._again_at = 0.0

    def dismiss(self, name: str) -> None:
        """Send the agent of a host away on which no worker of the job runs."""
        self.dismissed.add(self.links[name])
        self.links[name].hang_up()

    def connect_all(self) -> signal.Signals | None:
        """Start the agents that are not there, and wait for them; returns a signal that came meanwhile.

        Where a host that was lost does not come back, it returns when that host has certainly given up its workers.
        """
        self._give_up_coming()
        self._drop_lost()
        self._close_unused()
        self.failures.clear()
        for host in self.hosts:
            if host.name not in self.links:
                self._coming[host.name] = self._start(host)
        number = self._await_hellos(self._coming.values())
        self._take_coming()
        self.failures |= dict.fromkeys(self._coming, "it was not waited for")
        self._give_up_coming()
        self.links = {host.name: self.links[host.name] for host in self.hosts if host.name in self.links}
        if number is None and self.failures and self.inbox is not None:
            number = self.inbox.sleep(self.safe_at - time.monotonic())
        return number

    def reconnect(self, still_watched: Iterable[HostLink]) -> float | None:
        """Take the agents of missing hosts that have come, and start others now and then; waits for nothing.
        `still_watched`: links of which somebody has still to learn that they are lost. Returns when to look again, of
        the monotonic clock; None while no host is missing."""
        self._drop_lost(still_watched)
        self._take_coming()
        missing = [host for host in self.hosts if host.name not in self.links and host.name not in self._coming]
        now = time.monotonic()
        if missing and now >= max(self._again_at, self.safe_at):
            self._again_at = now + _AGAIN_SECONDS
            for host in missing:
                try:
                    self._coming[host.name] = self._start(host)
                except UsageError as error:  # for want of memory or processes, perhaps: others run
                    self.failures[host.name] = error.fact.rstrip(".")
        return now + _LOOK_SECONDS if missing or self._coming else None

    def _take_coming(self) -> None:
        """Keep the agents that have said hello, and note why others were lost."""
        for name, link in [(name, link) for name, link in self._coming.items() if link.hello is not None or link.lost]:
            del self._coming[name]
            if link.lost:
                self.failures[name] = link.lost
                link.close()
            else:
                self.failures.pop(name, None)
                self.links[name] = link

    def _give_up_coming(self) -> None:
        for link in self._coming.values():
            link.close()
        self._coming.clear()

    def _close_unused(self) -> None:
        """Agents of hosts that the job may not use any more, and those that were sent away."""
        named = {host.name for host in self.hosts}
        for name in [name for name, link in self.links.items() if name not in named or link in self.dismissed]:
            self.links.pop(name).close(_LEAVE_SECONDS)
        self.dismissed.clear()

    def sweep(self) -> list[str]:
        """Kill what is left of the job on all hosts; returns what cannot be killed, for people."""
        self._drop_lost()
        answers = ask_at_once([(link, "sweep", {}) for link in self.links.values()], 2 * SWEEP_SECONDS)
        swept = {name: left for name, left in zip(self.links, answers, strict=True) if isinstance(left, list)}
        return [f"{process} on {name}" for name, left in swept.items() for process in left]

    def _start(self, host: Host) -> HostLink:
        return HostLink(host.name, self.reach.line_to(host.name), self.seconds, self.reach.link_seconds)

    def _drop_lost(self, besides: Iterable[HostLink] = ()) -> None:
        kept = list(besides)
        for name in [name for name, link in self.links.items() if link.lost and link not in kept]:
            link = self.links.pop(name)
            if link in self.dismissed:
                self.dismissed.discard(link)
            else:
                self.failures[name] = link.lost
                self.safe_at = max(self.safe_at, link.heard + self.reach.link_seconds)
            link.close()

    def _await_hellos(self, links: Iterable[HostLink]) -> signal.Signals | None:
        """Wait for all agents, until each has said hello or is lost; returns a signal that came meanwhile."""
        deadline = time.monotonic() + self.seconds + 1.0
        for link in links:
            while link.hello is None and not link.lost and (left := deadline - time.monotonic()) > 0:
                link.wait(left, self.inbox)
                link.take()
                if self.inbox is not None and (numbers := self.inbox.take()):
                    return numbers[0]
        return None
