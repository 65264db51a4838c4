"""What the kernel knows of this process's connections to other hosts (tcp(7), `struct tcp_info` of linux/tcp.h)."""

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

_ROUND_TRIP, _RETRANSMITTED, _ACKNOWLEDGED, _SEGMENTS, _BUSY = 68, 100, 120, 156, 168  # bytes into the structure
_SIZE: Final = 176


class Connection(NamedTuple):
    """Counts since it was opened."""

    sent_bytes: float  # that the other side has confirmed
    busy: float  # seconds in which something was to be sent or to be confirmed
    retransmitted: float  # packets with data that were sent again, and all of them
    segments: float  # packets with data that were sent again, and all of them
    round_trip: float  # seconds, smoothed


def connections(files: Iterable[int]) -> dict[object, Connection]:
    """Those of `files` that are connections to other hosts, each by a key that no later one has."""
    counts: dict[object, Connection] = {}
    for file in files:
        with suppress(OSError, ValueError, struct.error):
            ends, info = _look(file)
            if ends is not None:
                counts[file, *ends] = _counted(info)
    return counts


def _look(file: int) -> tuple[tuple[object, object] | None, bytes]:
    """The two ends' addresses, None where both are on this host or it is not a connection; and the structure."""
    blocks = os.get_blocking(file)
    connection = socket.socket(fileno=file)  # which makes it non-blocking after socket.setdefaulttimeout()
    try:
        if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None, b""
        here, there = connection.getsockname(), connection.getpeername()
        if here[0] == there[0]:
            return None, b""
        return (here, there), connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    finally:
        connection.detach()  # or it would be closed
        os.set_blocking(file, blocks)


def _counted(info: bytes) -> Connection:
    if len(info) < _SIZE:  # before Linux 4.10
        return Connection(0, 0, 0, 0, 0)
    sent, busy = (struct.unpack_from("=Q", info, place)[0] for place in (_ACKNOWLEDGED, _BUSY))
    trip, again, segments = (
        struct.unpack_from("=I", info, place)[0] for place in (_ROUND_TRIP, _RETRANSMITTED, _SEGMENTS)
    )
    return Connection(sent, busy / 1e6, again, segments, trip / 1e6)
