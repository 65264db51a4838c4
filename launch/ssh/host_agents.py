"""The agents of a job's hosts: started, kept through restarts, and started again where they were lost."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Self, final

from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.processes.orphan_reaper import SWEEP_SECONDS
from hvdtrain.launch.ssh.command import SshOptions, agent_argv, ssh_argv
from hvdtrain.launch.ssh.frames import Frame
from hvdtrain.launch.ssh.link import HostLink
from hvdtrain.launch.supervisor.signals import SignalInbox

_LEAVE_SECONDS = SWEEP_SECONDS + 2.0


@final
class HostAgents:
    """One agent a host.

    Args:
        hosts: all that the job may use.
        options: how to reach them.
        is_here: whether a host is this machine: then its agent is started without ssh.
        inbox: a signal ends every wait; None: signals do what they do elsewhere.
        seconds: until an agent must have started.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        options: SshOptions,
        is_here: Callable[[str], bool],
        inbox: SignalInbox | None,
        seconds: float,
    ) -> None:
        self._hosts = hosts
        self._options = options
        self._here = {host.name: is_here(host.name) for host in hosts}
        self._inbox = inbox
        self._seconds = seconds
        self.links: dict[str, HostLink] = {}
        """Host → agent, of those that are there; in the order of the hosts."""
        self.failures: dict[str, str] = {}
        """Host → why it is not there."""
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
        missing = [host for host in self._hosts if host.name not in self.links]
        new = {host.name: self._start(host) for host in missing}
        self.failures.clear()
        deadline = time.monotonic() + self._seconds + 1.0
        number = self._follow(new, lambda link: link.hello is not None, _ignore, deadline, self._inbox)
        for name, link in new.items():
            if link.hello is None:
                self.failures[name] = link.lost or "it was not waited for"
                link.close()
        alive = {**self.links, **{name: link for name, link in new.items() if name not in self.failures}}
        self.links = {host.name: alive[host.name] for host in self._hosts if host.name in alive}
        if number is None and self.failures:
            number = self._sleep(self._safe_at)
        return number

    def sweep(self) -> list[str]:
        """Kill what is left of the job on all hosts; returns what cannot be killed, for people."""
        self._drop_lost()
        swept: dict[str, list[int]] = {}

        def note(link: HostLink, frame: Frame) -> None:
            if frame.kind == "swept":
                swept[link.name] = [int(process) for process in frame.fields["left"]]

        for link in self.links.values():
            link.send("sweep")
        deadline = time.monotonic() + 2 * SWEEP_SECONDS
        self._follow(self.links, lambda link: link.name in swept, note, deadline)
        return [f"{process} on {name}" for name, left in swept.items() for process in left]

    def exists(self, host: str, folder: str | None, path: str) -> bool:
        """Whether there is a file on that host; False where the host does not say."""
        answers: dict[str, bool] = {}

        def note(link: HostLink, frame: Frame) -> None:
            if frame.kind == "looked":
                answers[link.name] = bool(frame.fields["exists"])

        link = self.links[host]
        link.send("look", folder=folder, path=path)
        deadline = time.monotonic() + self._options.link_seconds
        self._follow({host: link}, lambda asked: asked.name in answers, note, deadline)
        return answers.get(host, False)

    def _start(self, host: Host) -> HostLink:
        argv = agent_argv(self._options) if self._here[host.name] else ssh_argv(self._options, host.name)
        return HostLink(host.name, argv, self._seconds, self._options.link_seconds)

    def _drop_lost(self) -> None:
        for name in [name for name, link in self.links.items() if link.lost]:
            link = self.links.pop(name)
            self.failures[name] = link.lost
            self._safe_at = max(self._safe_at, link.heard + self._options.link_seconds)
            link.close()

    def _follow(
        self,
        links: dict[str, HostLink],
        is_done: Callable[[HostLink], bool],
        note: Callable[[HostLink, Frame], None],
        deadline: float,
        inbox: SignalInbox | None = None,
    ) -> signal.Signals | None:
        """Hear all links until each is done or lost, or `deadline`; returns a signal that came to `inbox` meanwhile."""
        waiting = dict(links)
        with selectors.DefaultSelector() as selector:
            if inbox is not None:
                selector.register(inbox, selectors.EVENT_READ, inbox)
            for link in waiting.values():
                selector.register(link, selectors.EVENT_READ, link)
            while waiting and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    link = key.data
                    if inbox is not None and link is inbox:
                        if numbers := inbox.take():
                            return numbers[0]
                        continue
                    for frame in link.take():
                        note(link, frame)
                    if is_done(link) or link.lost:
                        selector.unregister(link)
                        waiting.pop(link.name, None)
        return None

    def _sleep(self, until: float) -> signal.Signals | None:
        while self._inbox is not None and (left := until - time.monotonic()) > 0:
            number = self._inbox.wait(left)
            if number is not None:
                return number
        return None


def _ignore(_link: HostLink, _frame: Frame) -> None:
    """What agents say while others still start."""
