"""Connect ranks whose launcher only starts processes: plain `srun`, torchrun, RANK and WORLD_SIZE by hand.

Rank 0 serves Horovod's own store protocol; all ranks connect to it and learn each other's hosts, and Horovod gets the
result in its variables, as from horovodrun.
"""

import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hvdtrain.comm.horovod_world import NODE_NAMES, node_name
from hvdtrain.comm.peer_failure import start_timeout
from hvdtrain.comm.rendezvous import handshake
from hvdtrain.comm.rendezvous.address import MeetingPoint, address_to_serve, interface_of, meeting_point, resolve
from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology

SECRET_VARIABLE = "HVDTRAIN_SECRET"

_TRY_SECONDS = 2.0
_PAUSE_SECONDS = 0.05  # between two rounds over all ports, while rank 0 is still starting
_ANSWER_BYTES = 4096
_LATE_SECONDS = 5.0  # the server's own deadline is the same as ours, and its answer is worth waiting for


@contextmanager
def connected_ranks(
    topology: Topology, environ: MutableMapping[str, str], store_lasts: ExitStack | None = None
) -> Iterator[None]:
    """Meet the other ranks and put Horovod's variables into `environ`; rank 0 serves until the block ends.

    All ranks must be initialized before that.

    Args:
        store_lasts: where rank 0's store is to end, which Horovod asks again for each process set that is added. It
            has a port of its own then: at the place to meet, the ranks' next start finds nobody of this one.

    Raises:
        UsageError: the launcher's variables do not tell where to meet, or ranks believe in different sizes.
        HvdtrainError: the ranks did not find each other in time.
    """
    deadline = time.monotonic() + start_timeout(environ)
    point = meeting_point(topology, environ)
    keys = handshake.Keys(point.job, environ.get(SECRET_VARIABLE, "").encode())
    hello = handshake.Hello(topology.rank, topology.size, handshake.sane_host(node_name(environ, NODE_NAMES)))
    with ExitStack() as stack:
        address, ports = resolve(point.host), point.ports
        if topology.is_root:
            address = address_to_serve(point, topology)
            ports = (_serve(point, keys, topology.size, address, deadline, stack, store_lasts),)
        world = join(address, ports, keys, hello, deadline)
        environ.update(_variables(world, environ))
        yield


def _serve(
    point: MeetingPoint,
    keys: handshake.Keys,
    size: int,
    address: str,
    deadline: float,
    stack: ExitStack,
    store_lasts: ExitStack | None,
) -> int:
    """Listen on the first free port; returns it."""
    meeting, hold_seconds = handshake.Meeting(keys, size, deadline), max(1.0, deadline - time.monotonic())
    taken = None
    for port in point.ports:
        server = RendezvousServer(address, size, port, greeter=meeting.greet, hold_seconds=hold_seconds)
        try:
            stack.enter_context(server)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(address, error) from error
            taken = error
            continue
        if store_lasts is not None:
            server = store_lasts.enter_context(RendezvousServer(address, size, hold_seconds=hold_seconds))
        meeting.store_variables = server.environment
        return port
    raise _cannot_listen(address, taken) from taken


def _variables(world: "World", environ: MutableMapping[str, str]) -> dict[str, str]:
    return {
        **world.place,
        **world.store,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": environ.get("HOROVOD_CPU_OPERATIONS", "gloo"),
        "HOROVOD_GLOO_IFACE": environ.get("HOROVOD_GLOO_IFACE") or interface_of(world.own_address),
    }


def _cannot_listen(address: str, error: OSError | None) -> HvdtrainError:
    reason = os.strerror(error.errno) if error is not None and error.errno else str(error)
    return HvdtrainError(
        f"Rank 0 cannot listen on {address}: {reason}.",
        "The other ranks look for it there.",
        "set MASTER_ADDR to an address of rank 0's host, and MASTER_PORT to a free port.",
    )


@dataclass(frozen=True, slots=True)
class World:
    """What a rank learns: its place, as HOROVOD_RANK and so on, what leads Horovod to the store, and its own address
    towards rank 0."""

    place: Mapping[str, str]
    store: Mapping[str, str]
    own_address: str


def join(address: str, ports: tuple[int, ...], keys: handshake.Keys, hello: handshake.Hello, deadline: float) -> World:
    """Meet the others at rank 0.

    Raises:
        HvdtrainError: rank 0 cannot be found, or others are missing at the deadline.
        UsageError: rank 0 knows another world than this rank.
    """
    while time.monotonic() < deadline:
        for port in ports:
            with (
                suppress(OSError, handshake.WrongPeerError),
                socket.create_connection((address, port), timeout=_TRY_SECONDS) as connection,
            ):
                nonces = _introduce(connection, keys, hello)
                return _await_world(connection, keys, nonces, deadline)
        time.sleep(_PAUSE_SECONDS)
    raise HvdtrainError(
        f"Rank {hello.rank} on {hello.host} found no rank 0 at {address} on any of the ports {_listed(ports)}.",
        "Rank 0 is missing, or a firewall is between them, or they do not have the same HVDTRAIN_SECRET.",
        "look at rank 0's own message; HVDTRAIN_START_TIMEOUT says how many seconds ranks wait for each other.",
    )


def _introduce(connection: socket.socket, keys: handshake.Keys, hello: handshake.Hello) -> tuple[str, str]:
    connection.settimeout(_TRY_SECONDS + handshake.RANK_SECONDS * hello.size)
    nonce = handshake.new_nonce()
    connection.sendall(f"{handshake.GREETING} {nonce}\n".encode())
    server_nonce, proof = handshake.parse_nonce(_read_line(connection, handshake.MAX_LINE_BYTES))
    nonces = (nonce, server_nonce)
    keys.require(proof, "server", nonces, "")
    connection.sendall(f"{hello.content} {keys.proof('rank', nonces, hello.content)}\n".encode())
    return nonces


def _await_world(connection: socket.socket, keys: handshake.Keys, nonces: tuple[str, str], deadline: float) -> World:
    connection.settimeout(max(0.0, deadline - time.monotonic()) + _LATE_SECONDS)
    text = _read_line(connection, _ANSWER_BYTES).decode("latin-1").rstrip("\n")
    keys.require(_read_line(connection, handshake.MAX_LINE_BYTES).decode("latin-1").rstrip("\n"), "world", nonces, text)
    answer: dict[str, Any] = json.loads(text)
    if "refused" in answer:
        raise UsageError(
            str(answer["refused"]), "Ranks and sizes of one job must fit together.", "check RANK and WORLD_SIZE."
        )
    if "missing" in answer:
        ranks, more = answer["missing"], int(answer["more"])
        raise HvdtrainError(
            f"Rank{'s' if len(ranks) > 1 else ''} {_listed(ranks, more)} did not come in time.",
            "The other ranks cannot begin without.",
            "look at their own messages; HVDTRAIN_START_TIMEOUT says how many seconds ranks wait for each other.",
        )
    return World(answer["place"], answer["store"], connection.getsockname()[0])


def _listed(numbers: tuple[int, ...] | list[int], more: int = 0) -> str:
    shown = ", ".join(map(str, numbers))
    return f"{shown} and {more} more" if more else shown


def _read_line(connection: socket.socket, limit: int) -> bytes:
    """One line, of `limit` bytes at most; what follows it stays in the socket. Raises WrongPeerError: it is longer, or
    the connection ends before it does."""
    line = b""
    while len(line) < limit:
        seen = connection.recv(4096, socket.MSG_PEEK)
        if not seen:
            break
        end = seen.find(b"\n") + 1
        line += connection.recv(end or len(seen))
        if end:
            return line
    raise handshake.WrongPeerError
