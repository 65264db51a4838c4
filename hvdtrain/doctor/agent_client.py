"""The doctor's end of an agent: start it here or by ssh, ask it, end it; every answer has a deadline."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, final

from hvdtrain.doctor.agent import HELLO

SSH = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)
"""A question for a password would be waited for in silence; a connection that died ends after 15 s."""

_GREETING_LINES = 200
_END_SECONDS = 3.0


class AgentError(Exception):
    """An agent did not start, refused, or did not answer in time; the text says which."""


@final
class Agent:
    """An agent that was started; ask it once it has greeted.

    Args:
        host: its name in the report.
        argv: what starts it.

    Raises:
        AgentError: there is no such program.
    """

    def __init__(self, host: str, argv: Sequence[str]) -> None:
        self.host = host
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._lost = ""
        self._end_by: float | None = None
        self.greeting: list[str] = []
        """What the login shell printed before the agent began."""
        try:
            self._process = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise AgentError(f"{argv[0]} cannot be started: {error.strerror}") from error

    def greet(self, deadline_s: float) -> None:
        """Wait for its first line.

        Raises:
            AgentError: it did not come within `deadline_s` seconds.
        """
        deadline = time.monotonic() + deadline_s
        while (line := self._line(deadline).decode(errors="replace")) != HELLO:
            self.greeting.append(line)
            if len(self.greeting) > _GREETING_LINES:
                raise AgentError("its shell prints without end")

    def send(self, do: str, /, **arguments: Any) -> None:
        """Send a request; its answer must be taken before the next one. Arguments as the agent's action `do` has them.

        Raises:
            AgentError: the agent is gone, or has not answered an earlier request in time.
        """
        if self._lost:
            raise AgentError(self._lost)
        request = json.dumps({"do": do, **arguments}).encode() + b"\n"
        if self._process.stdin is None:
            raise RuntimeError("the agent was started without pipes")
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except OSError as error:
            self._lost = f"the connection is gone: {self.last_words() or error.strerror}"
            raise AgentError(self._lost) from error

    def answer(self, deadline: float) -> Any:
        """The answer to the last request, until `deadline` of the monotonic clock.

        Raises:
            AgentError: it refused, ended, or did not answer in time.
        """
        line = self._line(deadline)
        try:
            answer = json.loads(line)
        except ValueError as error:
            self._lost = f"it answered {line[:80]!r}"
            raise AgentError(self._lost) from error
        if "error" in answer:
            raise AgentError(str(answer["error"]))
        return answer["ok"]

    def ask(self, do: str, deadline_s: float, /, **arguments: Any) -> Any:
        """The answer to one request, within `deadline_s` seconds; errors and arguments as `send` and `answer`."""
        self.send(do, **arguments)
        return self.answer(time.monotonic() + deadline_s)

    def hang_up(self) -> None:
        """Let its standard input end, which ends the agent and all that it has started."""
        if self._end_by is None:
            self._end_by = time.monotonic() + _END_SECONDS
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that nobody read
                    pipe.close()

    def close(self) -> None:
        """Hang up and wait; what has not ended after some seconds is killed."""
        self.hang_up()
        try:
            self._process.wait(timeout=max(0.0, (self._end_by or 0.0) - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()

    def last_words(self) -> str:
        """The end of what it wrote on standard error, ssh's own messages among it."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return " ".join(line.strip() for line in lines[-4:])[-500:]

    def _line(self, deadline: float) -> bytes:
        out = self._process.stdout
        if out is None:
            raise RuntimeError("the agent was started without pipes")
        while not self._lines:
            if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._lost = f"it did not answer in time {self.last_words()}".strip()
                raise AgentError(self._lost)
            data = os.read(out.fileno(), 2**16)
            if not data:
                self._process.wait(timeout=10)
                self._lost = self.last_words() or f"it ended with exit code {self._process.returncode}"
                raise AgentError(self._lost)
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(whole)
        return self._lines.popleft()


Request = tuple[Agent, str, Mapping[str, Any]]
"""Whom to ask, for which action, with which arguments."""


def ask_at_once(requests: Sequence[Request], deadline_s: float) -> list[Any]:
    """Ask different agents at the same time; the answers, or an `AgentError` each, in the order of `requests`."""
    refused: dict[int, AgentError] = {}
    for number, (agent, do, arguments) in enumerate(requests):
        try:
            agent.send(do, **arguments)
        except AgentError as error:
            refused[number] = error
    deadline = time.monotonic() + deadline_s
    return [refused.get(number) or _answer(agent, deadline) for number, (agent, _, _) in enumerate(requests)]


def _answer(agent: Agent, deadline: float) -> Any:
    try:
        return agent.answer(deadline)
    except AgentError as error:
        return error


def local_command(python: str) -> list[str]:
    """What starts an agent on this machine."""
    return [python, "-m", "hvdtrain.doctor.agent"]


def ssh_command(host: str, port: int | None, python: str, working_dir: str, python_path: str | None) -> list[str]:
    """What starts an agent on `host`, whose name was validated; the words for the remote shell are quoted.

    Args:
        host: name or address.
        port: of sshd; None: what ssh's own configuration says.
        python: interpreter there.
        working_dir: where it starts if that exists there, as launchers do.
        python_path: PYTHONPATH there; None: left alone.
    """
    added = ["env", f"PYTHONPATH={python_path}"] if python_path else []
    script = f"cd {shlex.quote(working_dir)} 2>/dev/null; exec {shlex.join([*added, *local_command(python)])}"
    flags = ["-p", str(port)] if port is not None else []
    # sh -c: the login shell may be one that knows no 2>.
    return ["ssh", *SSH, *flags, "--", host, f"exec sh -c {shlex.quote(script)}"]
