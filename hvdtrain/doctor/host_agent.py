"""The doctor's process on one host: the launcher's agent, which also answers these questions:

    clock           this host's time, seconds since the epoch
    connect         reach another agent's port
    facts           what `hvdtrain.doctor.host_facts.collect` finds
    listen          accept the other agents on one address; returns the port
    look            which hosts' token files are in the output folder
    mark, unmark    make or remove this host's
    port            a free port, for rank 0 of a measurement
    received        what arrived of a stream
    send            stream bytes to another agent for a while

An order to start names the ranks of a measurement that belong to this host. The agent runs with the rights of the user
who called the doctor, and listens only on the address it was told, to peers that know the examination's token.
"""

import hmac
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from hvdtrain.doctor.host_facts import collect
from hvdtrain.launch.processes.orphan_reaper import JOB_TOKEN_VARIABLE, OrphanReaper, with_job_token
from hvdtrain.launch.processes.worker import WorkerSpec
from hvdtrain.launch.ssh.agent import Agent
from hvdtrain.topology.launcher_variables import without_launcher

_TOKEN = re.compile(r"[0-9a-f]{8,64}-\d{1,6}")
_PREFIX = ".hvdtrain-doctor-"
_HELLO_BYTES = 200
_CHUNK = bytes(2**18)
_ANSWER = b"!"
_MAX_STREAMS = 1024


def main(seconds: float) -> None:
    """Serve until the doctor is gone, or has answered nothing for `seconds`."""
    with StreamServer() as streams, TokenFiles() as tokens, OrphanReaper(secrets.token_hex(16), adopts=True) as reaper:
        questions: dict[str, Callable[..., Any]] = {
            "clock": time.time,
            "connect": reach,
            "facts": collect,
            "listen": streams.listen,
            "look": look,
            "mark": tokens.make,
            "port": free_port,
            "received": streams.received,
            "send": send,
            "unmark": tokens.remove,
        }

        Agent(seconds, questions, _start).run()
        reaper.sweep()  # child processes that a question has started


def free_port(address: str) -> int:
    """A port of this host on which nobody listens now. Raises OSError (no interface bears the address)."""
    with socket.create_server((address, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _start(agent: Agent, job: dict[str, Any]) -> None:
    """Start `python -m hvdtrain COMMAND` as torchrun would, once for each of the job's `ranks`."""

    def specs(tokens: str) -> list[WorkerSpec]:
        inherited = {**without_launcher(os.environ), JOB_TOKEN_VARIABLE: with_job_token(os.environ, tokens)}
        command = [sys.executable, "-m", "hvdtrain", *job["command"]]
        common = {**inherited, **job["variables"], "LOCAL_WORLD_SIZE": str(len(job["ranks"]))}
        return [
            WorkerSpec(rank, command, {**common, "RANK": str(rank), "LOCAL_RANK": str(number)})
            for number, rank in enumerate(job["ranks"])
        ]

    agent.start(job["token"], specs, None)


class StreamServer(AbstractContextManager["StreamServer"]):
    """Accepts other agents, in a thread of its own. A context manager; leaving it closes everything."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._token = b""
        self._streams: dict[str, dict[str, float]] = {}
        self._done = threading.Condition()

    def __exit__(self, *error: object) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would keep it open
            self._listener.close()

    def listen(self, address: str, token: str, seconds: float) -> int:
        """Accept peers on `address` for `seconds`; returns the port, the kernel's choice. OSError: nothing bears it."""
        self._token = token.encode()
        self._listener = socket.create_server((address, 0), backlog=64)
        self._listener.settimeout(seconds)
        threading.Thread(target=self._accept, args=(self._listener,), name="streams", daemon=True).start()
        port: int = self._listener.getsockname()[1]
        return port

    def received(self, stream: str, seconds: float) -> dict[str, float]:
        """`bytes` and `seconds` of a stream that has ended, from its first byte on; waits `seconds` for its end. Raises
        LookupError: it has not ended in time."""
        with self._done:
            if not self._done.wait_for(lambda: stream in self._streams, seconds):
                raise LookupError(f"nothing arrived within {seconds:g} s")
            return self._streams[stream]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the time is up, or the server was closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="stream", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(10.0)
            try:
                token, stream, seconds = _read_hello(connection)
                if not hmac.compare_digest(token, self._token) or len(self._streams) >= _MAX_STREAMS:
                    return
                connection.sendall(_ANSWER)
                measured = _drain(connection, min(seconds, 60.0)) if seconds > 0 else None
            except (OSError, ValueError):
                return  # a peer that is gone or talks something else; the one who waits for its stream says so
        if measured is not None:
            with self._done:
                self._streams[stream] = measured
                self._done.notify_all()


def reach(address: str, port: int, token: str, seconds: float) -> float:
    """How many seconds another agent takes to answer; OSError: refused, no route, or no answer within `seconds`."""
    begin = time.monotonic()
    _connect(address, port, token, "reach", 0.0, seconds).close()
    return time.monotonic() - begin


def send(address: str, port: int, token: str, stream: str, seconds: float, deadline: float) -> None:
    """Stream bytes to another agent, which takes them for `seconds` and then closes the connection. Raises OSError: the
    peer cannot be reached, or takes nothing for `deadline` seconds."""
    begin = time.monotonic()
    with _connect(address, port, token, stream, seconds, deadline) as connection:
        try:
            while time.monotonic() - begin < seconds + deadline:
                connection.sendall(_CHUNK)
        except (BrokenPipeError, ConnectionResetError):
            return  # the receiver has seen enough


def _connect(address: str, port: int, token: str, stream: str, seconds: float, deadline: float) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=deadline)
    try:
        connection.sendall(f"{token}\n{stream}\n{seconds}\n".encode())
        if connection.recv(1) != _ANSWER:
            raise ConnectionRefusedError("something else answers on that port")
    except OSError:
        connection.close()
        raise
    return connection


def _read_hello(connection: socket.socket) -> tuple[bytes, str, float]:
    text = b""
    while text.count(b"\n") < 3:
        data = connection.recv(1)  # byte by byte: what follows is counted
        if not data or len(text) > _HELLO_BYTES:
            raise ValueError("no hello")
        text += data
    token, stream, seconds = text.splitlines()
    return token, stream.decode(), float(seconds)


def _drain(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """Read for `seconds`, and before that for a fifth of it from the first byte on, which is not counted: buffers and
    TCP's window fill up.

    The time counts from a read's end, so that one that waits for its bytes is in it with what it waited for.
    """
    buffer = memoryview(bytearray(2**20))
    connection.recv_into(buffer)
    begin = time.monotonic()
    while connection.recv_into(buffer) and time.monotonic() - begin < seconds / 5:
        pass
    counted_from = time.monotonic()
    count = 0
    while time.monotonic() - counted_from < seconds:
        got = connection.recv_into(buffer)
        if not got:
            break
        count += got
    return {"bytes": count, "seconds": time.monotonic() - counted_from}


class TokenFiles(AbstractContextManager["TokenFiles"]):
    """The token files of one agent. A context manager: leaving it removes those that are still there.

    A token is "HEX-NUMBER"; HEX is the same for all hosts, NUMBER is this host's. All that takes one raises OSError
    (the folder cannot be used), ValueError (no token).
    """

    def __init__(self) -> None:
        self._made: set[str] = set()

    def __exit__(self, *error: object) -> None:
        for path in self._made:
            os.unlink(path)

    def make(self, folder: str, token: str) -> None:
        """Make this host's file in a folder, which is there."""
        path = _path(folder, token)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        except FileNotFoundError as error:
            if not os.path.isdir(folder):
                raise
            raise OSError("it belongs to a file system in which nobody makes files, as /proc is") from error
        except OSError as error:
            raise OSError(error.strerror) from error  # the token's name says nothing to the reader
        self._made.add(path)

    def remove(self, folder: str, token: str) -> None:
        """Remove this host's file."""
        path = _path(folder, token)
        os.unlink(path)
        self._made.discard(path)


def look(folder: str, token: str, wanted: int, seconds: float) -> list[int]:
    """The sorted numbers of all hosts' files that are seen in the folder; waits `seconds` until there are `wanted`."""
    prefix = os.path.basename(_path(folder, token)).rpartition("-")[0] + "-"
    deadline = time.monotonic() + seconds
    while True:
        names = [name for name in os.listdir(folder) if name.startswith(prefix)]
        if len(names) >= wanted or time.monotonic() > deadline:
            return sorted(int(name.removeprefix(prefix)) for name in names)
        time.sleep(0.1)  # a network disk gives no notice of what other hosts do


def _path(folder: str, token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token")
    return os.path.join(folder, _PREFIX + token)


if __name__ == "__main__":
    main(float(sys.argv[1]))
