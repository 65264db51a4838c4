"""What a link can do, by plain sockets: `ping_pong.py serve ADDRESS PORT`, then `ping_pong.py ask ADDRESS PORT`.

The one that asks prints the ring model's two numbers. Nothing but Python's standard library takes part.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time

_BYTES = 2**23
_SMALL, _LARGE = 200, 7
_SECONDS = 60.0


def _receive(link: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(min(size, 2**20)))
    while size:
        size -= link.recv_into(buffer, min(size, len(buffer))) or sys.exit("the other side has ended")


def serve(address: str, port: int) -> None:
    """Answer each message with one byte."""
    with socket.create_server((address, port)) as server:
        server.settimeout(_SECONDS)
        link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(_SECONDS)
    for size in [1] * _SMALL + [_BYTES] * _LARGE:
        _receive(link, size)
        link.sendall(b"x")


def ask(address: str, port: int) -> None:
    """Print the latency of a message in seconds, and the bandwidth in bytes a second; medians."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            link = socket.create_connection((address, port), timeout=_SECONDS)
            break
        except ConnectionRefusedError:  # it is about to listen
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    latency = statistics.median(_round_trip(link, 1) for _ in range(_SMALL)) / 2
    bandwidth = statistics.median(_BYTES / (_round_trip(link, _BYTES) - latency) for _ in range(_LARGE))
    print(json.dumps({"latency": latency, "bandwidth": bandwidth}))


def _round_trip(link: socket.socket, size: int) -> float:
    message = bytes(size)
    begin = time.perf_counter()
    link.sendall(message)
    _receive(link, 1)
    return time.perf_counter() - begin


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
