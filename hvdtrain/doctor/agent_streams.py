"""Connections between agents: whether one can reach the other, and how fast bytes arrive.

A connection begins with the examination's token and the name of the stream, each in a line of its own. The receiver
measures, since only it knows what has arrived: what the sender has handed to its kernel may be megabytes more.
"""

import hmac
import socket
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

_HELLO_BYTES = 200
_CHUNK = bytes(2**18)
_ANSWER = b"!"
_MAX_STREAMS = 1024


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
        """`bytes` and `seconds` of a stream that has ended, from its first byte on; waits `seconds` for its end.

        Raises:
            LookupError: it has not ended in time.
        """
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
    """Stream bytes to another agent, which takes them for `seconds` and then closes the connection.

    Raises:
        OSError: the peer cannot be reached, or takes nothing for `deadline` seconds.
    """
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
    """Read for `seconds` from the first byte on; the first fifth is not counted: buffers and TCP's window fill up."""
    buffer = memoryview(bytearray(2**20))
    connection.recv_into(buffer)
    begin = time.monotonic()
    count, counted_from = 0, None
    while (now := time.monotonic()) - begin < seconds:
        got = connection.recv_into(buffer)
        if not got:
            break
        if counted_from is not None:
            count += got
        elif now - begin >= seconds / 5:
            counted_from = time.monotonic()
    return {"bytes": count, "seconds": time.monotonic() - (counted_from or begin)}
