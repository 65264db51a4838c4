"""The agents of a job's hosts: started, kept through restarts, and started again where they were lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, final

from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.processes.orphan_reaper import SWEEP_SECONDS
from hvdtrain.launch.ssh.agent_client import Agent, AgentError, ask_at_once
from hvdtrain.launch.ssh.command import SshOptions, agent_argv, ssh_argv
from hvdtrain.launch.ssh.link import HostLink
from hvdtrain.launch.supervisor.signals import SignalInbox

_LEAVE_SECONDS = SWEEP_SECONDS + 2.0


@final
@dataclass(eq=False)
class HostAgents:
    """One agent a host.

    Args:
        hosts: all that the job may use.
        options: how to reach them.
        is_here: whether a host is this machine: then its agent is started without ssh.
        inbox: a signal ends every wait; None: signals do what they do elsewhere.
        seconds: until an agent must have started.

    Attributes:
        links: host → agent, of those that are there; in the order of the hosts.
        failures: host → why it is not there.
    """

    hosts: Sequence[Host]
    options: SshOptions
    is_here: Callable[[str], bool]
    inbox: SignalInbox | None
    seconds: float

    def __post_init__(self) -> None:
        self._here = {host.name: self.is_here(host.name) for host in self.hosts}
        self.links: dict[str, HostLink] = {}
        self.failures: dict[str, str] = {}
        self._safe_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for link in self.links.values():
            link.hang_up()  # all first: they end at the same time
        deadline = time.monotonic() + _LEAVE_SECONDS
        for link in self.links.values():
            link.close(max(0.0, deadline - time.monotonic()))
        self.links.clear()

    def connect_all(self) -> signal.Signals | None:
        """Start the agents that are not there, and wait for them; returns a signal that came meanwhile.

        Where a host that was lost does not come back, it returns when that host has certainly given up its workers.
        """
        self._drop_lost()
        missing = [host for host in self.hosts if host.name not in self.links]
        new = {host.name: self._start(host) for host in missing}
        self.failures.clear()
        number = self._await_hellos(new.values())
        for name, link in new.items():
            if link.hello is None:
                self.failures[name] = link.lost or "it was not waited for"
                link.close()
        alive = {**self.links, **{name: link for name, link in new.items() if name not in self.failures}}
        self.links = {host.name: alive[host.name] for host in self.hosts if host.name in alive}
        if number is None and self.failures and self.inbox is not None:
            number = self.inbox.sleep(self._safe_at - time.monotonic())
        return number

    def sweep(self) -> list[str]:
        """Kill what is left of the job on all hosts; returns what cannot be killed, for people."""
        self._drop_lost()
        answers = ask_at_once([(Agent(link), "sweep", {}) for link in self.links.values()], 2 * SWEEP_SECONDS)
        swept = {name: left for name, left in zip(self.links, answers, strict=True) if isinstance(left, list)}
        return [f"{process} on {name}" for name, left in swept.items() for process in left]

    def exists(self, host: str, path: str) -> bool:
        """Whether there is a file on that host; False where the host does not say."""
        try:
            return bool(Agent(self.links[host]).ask("exists", self.options.link_seconds, path=path))
        except AgentError:
            return False

    def _start(self, host: Host) -> HostLink:
        argv = agent_argv(self.options) if self._here[host.name] else ssh_argv(self.options, host.name)
        return HostLink(host.name, argv, self.seconds, self.options.link_seconds)

    def _drop_lost(self) -> None:
        for name in [name for name, link in self.links.items() if link.lost]:
            link = self.links.pop(name)
            self.failures[name] = link.lost
            self._safe_at = max(self._safe_at, link.heard + self.options.link_seconds)
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
