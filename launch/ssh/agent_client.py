"""What a launcher does through an agent: ask it, with a deadline for the answer, and let it start workers."""

from __future__ import annotations

import itertools
import selectors
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import WorkerEvents
from hvdtrain.launch.ssh.frames import Frame
from hvdtrain.launch.ssh.link import HostLink

_numbers = itertools.count(1)  # an answer that comes too late is not taken for another one


class AgentError(Exception):
    """An agent was lost, refused, or did not answer in time; the text says which."""


@final
class Agent:
    """An agent that has said hello.

    Args:
        link: to the agent.
    """

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self._asked = 0

    def send(self, do: str, /, **arguments: Any) -> None:
        """Send a question; its answer is taken before the next one. Arguments as the agent's module has them."""
        self._asked = next(_numbers)
        self.link.send("ask", do=do, number=self._asked, arguments=arguments)

    def answer(self, deadline: float) -> Any:
        """The answer to the last question, until `deadline` of the monotonic clock.

        Raises:
            AgentError: it refused, ended, or did not answer in time.
        """
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
    return [_answer(agent, deadline) for agent, _, _ in requests]


def _answer(agent: Agent, deadline: float) -> Any:
    try:
        return agent.answer(deadline)
    except AgentError as error:
        return error


@final
class RemoteWorkerGroup:
    """Workers that an agent starts.

    Args:
        link: to the agent, which has said hello.
        ranks: of its workers.
        order: to start them, as the agent understands it.
    """

    def __init__(self, link: HostLink, ranks: Iterable[int], order: Mapping[str, Any]) -> None:
        self._link = link
        self._running = set(ranks)
        link.send("start", **order)

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        selector.register(self._link, selectors.EVENT_READ, lambda: self._read_frames(events))
        if self._link.lost:  # before this began to listen
            self._report_lost(events)

    def send(self, number: signal.Signals) -> None:
        self._link.send("signal", number=int(number))

    def kill(self) -> None:
        self._link.send("kill")

    def _read_frames(self, events: WorkerEvents) -> None:
        for frame in self._link.take():
            self._dispatch(frame, events)

    def _dispatch(self, frame: Frame, events: WorkerEvents) -> None:
        fields = frame.fields
        if frame.kind == "lost":
            self._report_lost(events)
        elif frame.kind == "refused":
            fact = f"{self._link.name}: {fields['fact']}"
            raise UsageError(fact, str(fields["conflict"]), str(fields["hint"]))
        elif fields.get("rank") not in self._running:
            return  # of a rank that is not its own, or has ended
        elif frame.kind == "started":
            events.started(fields["rank"], int(fields["process"]))
        elif frame.kind == "output":
            events.wrote(fields["rank"], int(fields["stream"]), frame.body)
            self._link.send("read", bytes=len(frame.body))
        elif frame.kind == "ended":
            failure = fields["failure"] and FailureRecord(**fields["failure"])
            end = WorkerExit(int(fields["code"]), bool(fields["by_us"]), bool(fields["out_of_memory"]), failure=failure)
            self._report_end(fields["rank"], end, events)

    def _report_lost(self, events: WorkerEvents) -> None:
        for rank in sorted(self._running):
            self._report_end(rank, WorkerExit(1, lost=self._link.lost), events)

    def _report_end(self, rank: int, end: WorkerExit, events: WorkerEvents) -> None:
        self._running.discard(rank)
        events.ended(rank, end)
