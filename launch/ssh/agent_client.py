"""What a launcher does through agents: start one on each host, send it requests, and let it start workers."""

import itertools
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.processes.orphan_reaper import SWEEP_SECONDS
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import WorkerEvents
from hvdtrain.launch.ssh.command import SshOptions, agent_argv, ssh_argv
from hvdtrain.launch.ssh.frames import Frame
from hvdtrain.launch.ssh.link import HostLink
from hvdtrain.launch.supervisor.signals import SignalInbox

_LEAVE_SECONDS = SWEEP_SECONDS + 2.0
_AGAIN_SECONDS = 10.0  # between two attempts to reach a host that is missing
_LOOK_SECONDS = 0.5  # between two looks whether it has answered
_numbers = itertools.count(1)  # an answer that comes too late is not taken for another one


class AgentError(Exception):
    """An agent was lost, refused, or did not answer in time; the text says which."""


class Agent:
    """An agent that has said hello."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self._asked = 0

    def send(self, do: str, /, **arguments: Any) -> None:
        """Send a question; its answer is taken before the next one. Arguments as the agent's module has them."""
        self._asked = next(_numbers)
        self.link.send("ask", do=do, number=self._asked, arguments=arguments)

    def answer(self, deadline: float) -> Any:
        """The answer to the last question, by `deadline` of the monotonic clock; AgentError: none, or a refusal."""
        while not self.link.lost:
            for frame in self.link.take():
                if frame.kind == "answer" and frame.fields["number"] == self._asked:
                    if "error" in frame.fields:
                        raise AgentError(str(frame.fields["error"]))
                    return frame.fields["ok"]
            if not self.link.wait(max(0.0, deadline - time.monotonic())):
                raise AgentError("it did not answer in time")
        raise AgentError(self.link.lost)

    def ask(self, do: str, deadline_s: float, /, **arguments: Any) -> Any:
        """The answer to one question, within `deadline_s` seconds; errors and arguments as `send` and `answer`."""
        self.send(do, **arguments)
        return self.answer(time.monotonic() + deadline_s)


Request = tuple[Agent, str, Mapping[str, Any]]
"""Whom to ask, what, and with which arguments."""


def ask_at_once(requests: Sequence[Request], deadline_s: float) -> list[Any]:
    """Ask different agents at the same time; the answers, or an `AgentError` each, in the order of `requests`."""
    for agent, do, arguments in requests:
        agent.send(do, **arguments)
    deadline = time.monotonic() + deadline_s
    answers: list[Any] = []
    for agent, _, _ in requests:
        try:
            answers.append(agent.answer(deadline))
        except AgentError as error:
            answers.append(error)
    return answers


class RemoteWorkerGroup:
    """Workers of `ranks` that an agent, which has said hello, starts by an order that it understands."""

    def __init__(self, link: HostLink, ranks: Iterable[int], order: Mapping[str, Any]) -> None:
        self.link = link
        self.has_lost = False
        """Whether the agent is lost, and whoever watches was told that its workers are."""
        self._running: set[int] = set()
        self.add(ranks, order)

    def add(self, ranks: Iterable[int], order: Mapping[str, Any]) -> None:
        """Let the agent start more workers."""
        self._running.update(ranks)
        self.link.send("start", **order)

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        def read_frames() -> None:
            for frame in self.link.take():
                self._dispatch(frame, events)
            if self.has_lost:
                selector.unregister(self.link)

        selector.register(self.link, selectors.EVENT_READ, read_frames)
        if self.link.lost:  # before this began to listen
            self._report_lost(events)

    def send(self, number: signal.Signals) -> None:
        self.link.send("signal", number=int(number))

    def kill(self, rank: int | None = None) -> None:
        self.link.send("kill", rank=rank)

    def tell(self, rank: int, order: Mapping[str, Any]) -> None:
        self.link.send("tell", rank=rank, order=order)

    def _dispatch(self, frame: Frame, events: WorkerEvents) -> None:
        fields = frame.fields
        if frame.kind == "lost":
            self._report_lost(events)
        elif frame.kind == "refused":
            fact = f"{self.link.name}: {fields['fact']}"
            raise UsageError(fact, str(fields["conflict"]), str(fields["hint"]))
        elif fields.get("rank") not in self._running:
            return  # of a rank that is not its own, or has ended
        elif frame.kind == "started":
            events.started(fields["rank"], int(fields["process"]))
        elif frame.kind == "output":
            events.wrote(fields["rank"], int(fields["stream"]), frame.body)
            self.link.send("read", bytes=len(frame.body))
        elif frame.kind == "told":
            events.told(fields["rank"], fields["message"])
        elif frame.kind == "ended":
            failure = fields["failure"] and FailureRecord(**fields["failure"])
            end = WorkerExit(int(fields["code"]), bool(fields["by_us"]), bool(fields["out_of_memory"]), failure=failure)
            self._report_end(fields["rank"], end, events)

    def _report_lost(self, events: WorkerEvents) -> None:
        self.has_lost = True
        for rank in sorted(self._running):
            self._report_end(rank, WorkerExit(1, lost=self.link.lost), events)

    def _report_end(self, rank: int, end: WorkerExit, events: WorkerEvents) -> None:
        self._running.discard(rank)
        events.ended(rank, end)


@dataclass(eq=False)
class HostAgents(AbstractContextManager["HostAgents"]):
    """One agent for each host that the job may use.

    Args:
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
        self._coming: dict[str, HostLink] = {}
        self._again_at = 0.0
        self.safe_at = 0.0
        """Before this time of the monotonic clock, workers of a host that was lost may still run."""

    def __exit__(self, *exception: object) -> None:
        self._give_up_coming()
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
        self._give_up_coming()
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
            number = self.inbox.sleep(self.safe_at - time.monotonic())
        return number

    def reconnect(self, still_watched: Iterable[HostLink]) -> float | None:
        """Take the agents of missing hosts that have come, and start others now and then; waits for nothing.

        Args:
            still_watched: links of which somebody has still to learn that they are lost.

        Returns:
            When to look again, of the monotonic clock; None while no host is missing.
        """
        self._drop_lost(still_watched)
        for name, link in [(name, link) for name, link in self._coming.items() if link.hello is not None or link.lost]:
            del self._coming[name]
            if link.lost:
                self.failures[name] = link.lost
                link.close()
            else:
                self.failures.pop(name, None)
                self.links[name] = link
        missing = [host for host in self.hosts if host.name not in self.links and host.name not in self._coming]
        now = time.monotonic()
        if missing and now >= max(self._again_at, self.safe_at):
            self._again_at = now + _AGAIN_SECONDS
            self._coming.update({host.name: self._start(host) for host in missing})
        return now + _LOOK_SECONDS if missing or self._coming else None

    def _give_up_coming(self) -> None:
        for link in self._coming.values():
            link.close()
        self._coming.clear()

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

    def _drop_lost(self, besides: Iterable[HostLink] = ()) -> None:
        kept = list(besides)
        for name in [name for name, link in self.links.items() if link.lost and link not in kept]:
            link = self.links.pop(name)
            self.failures[name] = link.lost
            self.safe_at = max(self.safe_at, link.heard + self.options.link_seconds)
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
