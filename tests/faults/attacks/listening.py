"""Which TCP sockets processes listen on: /proc/net/tcp and /proc/net/tcp6, proc(5)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"


def listening(processes: Iterable[int]) -> set[tuple[int, str, int]]:
    """(process, address, port) of each."""
    owners = {inode: process for process in processes for inode in _sockets_of(process)}
    return {(owners[inode], *place) for inode, place in _all_listening().items() if inode in owners}


def _sockets_of(process: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{process}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _all_listening() -> dict[str, tuple[str, int]]:
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                found[words[9]] = _readable(address, family), int(port, 16)
    return found


def _readable(address: str, family: socket.AddressFamily) -> str:
    """Words of 32 bits, each in the machine's order of bytes, which is little endian."""
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return socket.inet_ntop(family, b"".join(words))
