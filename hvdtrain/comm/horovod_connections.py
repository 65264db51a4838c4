"""The connections that Horovod opens over Gloo, looked at and ended from outside.

Nothing in Horovod interrupts a wait for a rank whose host is silent: Gloo gives up after HOROVOD_GLOO_TIMEOUT_SECONDS
(30 by default), and after five times as many while it connects. Who knows earlier that the rank is lost ends the
connections, and the wait fails at once.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_AGAIN_SECONDS: Final = 0.05

_remembered: Final[set[str]] = set()  # of this process, which has one Horovod
_older: Final[list[set[str]]] = []  # while it starts: the sockets of before


@contextmanager
def remembering_connections() -> Iterator[None]:
    """Run the block that opens connections; those before it are not Horovod's, or of a world that has ended."""
    _remembered.clear()
    before = set(_sockets().values())
    _older.append(before)
    try:
        yield
    finally:
        _remembered.update(set(_sockets().values()) - before)
        _older.clear()


def end_connections() -> None:
    """End those that were opened in the last block of `remembering_connections`. For any thread but that of the block:
    while it runs, this ends all that it opens. The next block may begin when this has returned."""
    while True:
        older = next(iter(_older), None)
        sockets = _sockets()
        ended = _remembered if older is None else set(sockets.values()) - older
        for file, name in sockets.items():
            if name in ended:
                _end(file)
        if older is None:
            return
        time.sleep(_AGAIN_SECONDS)


def _end(file: int) -> None:
    with suppress(OSError):
        copy = os.dup(file)  # so that its number is that of no other file meanwhile
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise
        with connection:
            connection.shutdown(socket.SHUT_RDWR)


def open_connections() -> list[int]:
    """Files of Horovod's connections; of all sockets over MPI, which opens a connection when it needs it."""
    sockets = _sockets()
    return [file for file, name in sockets.items() if name in _remembered] or list(sockets)


def _sockets() -> dict[int, str]:
    """Files of this process that are sockets, with a name that no other socket has: "socket:[INODE]"."""
    sockets = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = os.readlink(entry)
            if name.startswith("socket:"):
                sockets[int(entry.name)] = name
    return sockets
