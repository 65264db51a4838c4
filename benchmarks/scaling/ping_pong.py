"""What a link can do, by plain sockets: `ping_pong.py serve ADDRESS PORT [BYTES…]`, then `ping_pong.py ask …` alike.

The one that asks prints the ring model's two numbers, and what a ring of two takes that is written by hand: each side
sends a half while it receives one, adds it to its own, and sends the sum while it receives one.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BYTES = 2**23
_SMALL, _LARGE = 200, 7
_RINGS = 7
"""Of each size; the first ones open TCP's window, and the median counts."""
_SECONDS = 60.0


def _receive(link: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(min(size, 2**20)))
    while size:
        size -= link.recv_into(buffer, min(size, len(buffer))) or sys.exit("the other side has ended")


def serve(address: str, port: int, sizes: Sequence[int]) -> None:
    """Answer each message with one byte, then take part in the rings."""
    with socket.create_server((address, port)) as server:
        server.settimeout(_SECONDS)
        link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(_SECONDS)
    for size in [1] * _SMALL + [_BYTES] * _LARGE:
        _receive(link, size)
        link.sendall(b"x")
    for size in sizes:
        _ring_seconds(link, size, own=1)


def ask(address: str, port: int, sizes: Sequence[int]) -> None:
    """Print the latency of a message in seconds, the bandwidth in bytes a second, and a ring's seconds; medians."""
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
    rings = {str(size): _ring_seconds(link, size, own=0) for size in sizes}
    print(json.dumps({"latency": latency, "bandwidth": bandwidth, "rings": rings}))


def _round_trip(link: socket.socket, size: int) -> float:
    message = bytes(size)
    begin = time.perf_counter()
    link.sendall(message)
    _receive(link, 1)
    return time.perf_counter() - begin


def _ring_seconds(link: socket.socket, size: int, own: int) -> float:
    """Of a sum of float32 over two processes: each sums the half of its number, and then sends it."""
    halves = np.zeros((2, size // 8), np.float32)
    received = np.empty_like(halves[0])
    link.setblocking(False)
    times = []
    for _ in range(_RINGS):
        begin = time.perf_counter()
        _exchange(link, halves[1 - own], received)
        halves[own] += received
        _exchange(link, halves[own], halves[1 - own])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _exchange(link: socket.socket, own: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    """Send one array while the other is received."""
    to_send, to_fill = memoryview(own).cast("B"), memoryview(other).cast("B")
    while to_send or to_fill:
        readable, writable, _ = select.select([link] if to_fill else [], [link] if to_send else [], [], _SECONDS)
        if not readable and not writable:
            sys.exit("the other side does not answer")
        if readable:
            to_fill = to_fill[link.recv_into(to_fill) or sys.exit("the other side has ended") :]
        if writable:
            to_send = to_send[link.send(to_send) :]


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), list(map(int, sys.argv[4:])))
