"""The agent of `hvdtrain launch ssh`, in a seat: its line is a connection that the launcher opens."""

import hmac
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from hvdtrain.launch.ssh.agent import Agent, start_workers

PYTHON = "python"
"""As the first word of a command: the interpreter of the seat."""
TOKEN_BYTES = 32  # of hexadecimal digits, which the caller sends first
_TOKEN_SECONDS = 5.0  # for a caller to send it


def serve(listener: socket.socket, token: str, seconds: float, deadline: float) -> None:
    """Be the agent of the first caller that sends `token` before `deadline` of the monotonic clock; without one,
    nothing happens. `seconds` as of `Agent`."""
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        with connection:
            if _knows(connection, token):
                _run(connection, seconds)
                return


def _knows(connection: socket.socket, token: str) -> bool:
    connection.settimeout(_TOKEN_SECONDS)
    sent = b""
    with suppress(OSError):
        while len(sent) < TOKEN_BYTES and (data := connection.recv(TOKEN_BYTES - len(sent))):
            sent += data
    return hmac.compare_digest(sent, token.encode())


def _run(connection: socket.socket, seconds: float) -> None:
    caller, own = connection.getpeername()[0], connection.getsockname()[0]
    called_from = "" if _is_here(caller, own) else caller
    with connection.dup() as sending:
        Agent(seconds, {}, _start, (connection.fileno(), sending.fileno()), called_from).run()


def _is_here(caller: str, own: str) -> bool:
    """Whether the launcher runs on this machine: then it calls from the address that it calls, or from loopback."""
    return caller == own or caller.startswith("127.")


def _start(agent: Agent, order: dict[str, Any]) -> None:
    program, *arguments = order["command"]
    start_workers(agent, order | {"command": [sys.executable if program == PYTHON else program, *arguments]})
