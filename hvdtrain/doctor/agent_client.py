"""The doctor's end of an agent: ask it, and wait for the answer until a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from hvdtrain.launch.ssh.link import HostLink


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
        """Send a question; its answer is taken before the next one. Arguments as `hvdtrain.doctor.agent` has them."""
        self._asked += 1
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
