"""Every rank's side of the handshake: find rank 0, identify itself, and wait for the answer."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.comm.rendezvous.handshake import (
    GREETING,
    MAX_LINE_BYTES,
    Hello,
    Host,
    Keys,
    WrongPeerError,
    new_nonce,
    parse_nonce,
)
from hvdtrain.errors import HvdtrainError, UsageError

_TRY_SECONDS = 2.0
_PAUSE_SECONDS = 0.05  # between two rounds over all ports, while rank 0 is still starting
_ANSWER_BYTES = 600  # for each rank: a host's name and address
_LATE_SECONDS = 5.0  # the server's own deadline is the same as ours, and its answer is worth waiting for


@dataclass(frozen=True, slots=True)
class World:
    """What a rank learns.

    Attributes:
        hosts: of every rank.
        store: variables that lead Horovod to the store.
        own_address: this rank's, on the network that leads to rank 0.
    """

    hosts: tuple[Host, ...]
    store: Mapping[str, str]
    own_address: str


def join(address: str, ports: tuple[int, ...], keys: Keys, hello: Hello, deadline: float) -> World:
    """Meet the others at rank 0.

    Raises:
        HvdtrainError: rank 0 cannot be found, or others are missing at the deadline.
        UsageError: rank 0 knows another world than this rank.
    """
    while time.monotonic() < deadline:
        for port in ports:
            with contextlib.suppress(OSError, WrongPeerError), _connected(address, port) as connection:
                nonces = _introduce(connection, keys, hello)
                return _await_world(connection, keys, nonces, hello, deadline)
        time.sleep(_PAUSE_SECONDS)
    raise HvdtrainError(
        f"Rank {hello.rank} on {hello.host} found no rank 0 at {address} on any of the ports {_listed(ports)}.",
        "Rank 0 is missing, or a firewall is between them, or they do not have the same HVDTRAIN_SECRET.",
        "look at rank 0's own message; HVDTRAIN_START_TIMEOUT says how many seconds ranks wait for each other.",
    )


def _connected(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), timeout=_TRY_SECONDS)


def _introduce(connection: socket.socket, keys: Keys, hello: Hello) -> tuple[str, str]:
    own = new_nonce()
    connection.sendall(f"{GREETING} {own}\n".encode())
    nonce, proof = parse_nonce(_read_line(connection, MAX_LINE_BYTES))
    nonces = (own, nonce)
    keys.require(proof, "server", nonces, "")
    connection.sendall(f"{hello.content} {keys.proof('rank', nonces, hello.content)}\n".encode())
    return nonces


def _await_world(
    connection: socket.socket, keys: Keys, nonces: tuple[str, str], hello: Hello, deadline: float
) -> World:
    connection.settimeout(max(0.0, deadline - time.monotonic()) + _LATE_SECONDS)
    text = _read_line(connection, 4096 + _ANSWER_BYTES * hello.size).decode("latin-1").rstrip("\n")
    keys.require(_read_line(connection, MAX_LINE_BYTES).decode("latin-1").rstrip("\n"), "world", nonces, text)
    answer: dict[str, Any] = json.loads(text)
    if "refused" in answer:
        raise UsageError(
            str(answer["refused"]), "Ranks and sizes of one job must fit together.", "check RANK and WORLD_SIZE."
        )
    if "missing" in answer:
        raise _missing(answer["missing"])
    hosts = tuple((str(name), str(address)) for name, address in answer["hosts"])
    return World(hosts, answer["store"], connection.getsockname()[0])


def _missing(ranks: list[int]) -> HvdtrainError:
    return HvdtrainError(
        f"Rank{'s' if len(ranks) > 1 else ''} {_listed(ranks)} did not come in time.",
        "The other ranks cannot begin without.",
        "look at their own messages; HVDTRAIN_START_TIMEOUT says how many seconds ranks wait for each other.",
    )


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    shown = ", ".join(map(str, numbers[:20]))
    return f"{shown} and {len(numbers) - 20} more" if len(numbers) > 20 else shown


def _read_line(connection: socket.socket, limit: int) -> bytes:
    """One line, of `limit` bytes at most; what follows it stays in the socket.

    Raises:
        WrongPeerError: it is longer, or the connection ends before it does.
    """
    line = b""
    while len(line) < limit:
        seen = connection.recv(4096, socket.MSG_PEEK)
        if not seen:
            break
        end = seen.find(b"\n") + 1
        line += connection.recv(end or len(seen))
        if end:
            return line
    raise WrongPeerError
