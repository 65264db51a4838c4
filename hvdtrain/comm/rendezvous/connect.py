"""Connect ranks whose launcher only starts processes: plain `srun`, torchrun, RANK and WORLD_SIZE by hand.

Rank 0 serves Horovod's own store protocol at the address in the launcher's variables; all ranks connect to it and
learn each other's hosts, and Horovod gets the result in its variables, as from horovodrun.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager

from hvdtrain.comm.failure import start_timeout
from hvdtrain.comm.rendezvous.address import MeetingPoint, address_to_serve, interface_of, meeting_point, resolve
from hvdtrain.comm.rendezvous.client import World, join
from hvdtrain.comm.rendezvous.handshake import Hello, Host, Keys, Meeting, sane_host
from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import HvdtrainError
from hvdtrain.topology import Topology

SECRET_VARIABLE = "HVDTRAIN_SECRET"

_NODE_NAMES = ("SLURMD_NODENAME", "SM_CURRENT_HOST")  # nodes that are emulated on one machine share its host name


@contextmanager
def connected_ranks(topology: Topology, environ: MutableMapping[str, str]) -> Iterator[None]:
    """Meet the other ranks and put Horovod's variables into `environ`; rank 0 serves until the block ends.

    All ranks must be initialized before rank 0 leaves the block.

    Raises:
        UsageError: the launcher's variables do not tell where to meet, or ranks believe in different sizes.
        HvdtrainError: the ranks did not find each other in time.
    """
    deadline = time.monotonic() + start_timeout(environ)
    point = meeting_point(topology, environ)
    keys = Keys(point.job, environ.get(SECRET_VARIABLE, "").encode())
    node = next(filter(None, map(environ.get, _NODE_NAMES)), socket.gethostname())
    hello = Hello(topology.rank, topology.size, sane_host(node))
    with ExitStack() as stack:
        address, ports = resolve(point.host), point.ports
        if topology.is_root:
            address = address_to_serve(point, topology)
            ports = (_serve(point, keys, topology.size, address, deadline, stack),)
        world = join(address, ports, keys, hello, deadline)
        environ.update(_variables(topology.rank, world, environ))
        yield


def _serve(point: MeetingPoint, keys: Keys, size: int, address: str, deadline: float, stack: ExitStack) -> int:
    """Listen on the first free port; returns it."""
    meeting = Meeting(keys, size, deadline)
    taken = None
    for port in point.ports:
        server = RendezvousServer(
            address, size, port, greeter=meeting.greet, hold_seconds=max(1.0, deadline - time.monotonic())
        )
        try:
            stack.enter_context(server)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(address, error) from error
            taken = error
            continue
        meeting.store_variables = server.environment
        return port
    raise _cannot_listen(address, taken) from taken


def _variables(rank: int, world: World, environ: MutableMapping[str, str]) -> dict[str, str]:
    return {
        **place_variables(rank, world.hosts),
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


def place_variables(rank: int, hosts: Sequence[Host]) -> dict[str, str]:
    """HOROVOD_RANK and so on for `rank`, where rank N runs on `hosts[N]`.

    Ranks of one host are numbered in the order of their ranks, hosts in the order of their first ranks. Horovod's cross
    rank and size count only the hosts that have a rank of the same local number.
    """
    local_ranks = [hosts[:other].count(host) for other, host in enumerate(hosts)]
    local_rank, own = local_ranks[rank], hosts[rank]
    alike = [host for host, number in zip(hosts, local_ranks, strict=True) if number == local_rank]
    order = list(dict.fromkeys(hosts))
    numbers = {
        "RANK": rank,
        "SIZE": len(hosts),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": hosts.count(own),
        "CROSS_RANK": sorted(alike, key=order.index).index(own),
        "CROSS_SIZE": len(alike),
    }
    names = {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
    return {**names, "HOROVOD_HOSTNAME": _unique_name(own, hosts)}


def _unique_name(own: Host, hosts: Sequence[Host]) -> str:
    """Horovod groups ranks by this name, so two hosts must not share it."""
    alone = all(host == own for host in hosts if host[0] == own[0])
    return own[0] if alone else f"{own[0]}-{own[1]}"
