"""Where the rendezvous of a job is, derived from the launcher's variables: an address, and ports to try."""

import hashlib
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology
from hvdtrain.topology.source_address import LOOPBACK, source_address

_AGENT = "TORCHELASTIC_RUN_ID"
_FIRST_PORT, _PORTS = 20_000, 10_000  # below Linux's range for outgoing connections, 32768 and up
_CANDIDATES = 16
_MORE = {
    "torchrun": (_AGENT, "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
}


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    job: str  # text that all ranks of one start of one job share, and others do not
    host: str  # name or address of rank 0's host, as the others know it
    ports: tuple[int, ...]  # in the order in which they are tried


def meeting_point(topology: Topology, environ: Mapping[str, str]) -> MeetingPoint:
    """The meeting point of the job that `topology` is part of. Raises UsageError: the launcher's variables do not tell
    where rank 0 runs."""
    names = _MORE[topology.launcher]
    job = "|".join([topology.launcher, str(topology.size), *(f"{n}={environ.get(n, '')}" for n in names)])
    derived = _derived_ports(job)
    if topology.launcher == "slurm":
        return MeetingPoint(job, _first_node(topology), derived)
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) < 65_536):
        raise _missing("MASTER_PORT", "a port of rank 0's host, the same number for all ranks")
    if not host:
        raise _missing("MASTER_ADDR", "the name or address of rank 0's host")
    # The agent of torchrun itself listens on MASTER_PORT.
    return MeetingPoint(job, host, derived if _AGENT in environ else (int(port), *derived))


def _first_node(topology: Topology) -> str:
    if topology.num_nodes == 1:
        return LOOPBACK
    if not topology.hosts:
        raise UsageError(
            "SLURM_STEP_NODELIST does not name this step's nodes.",
            "The other ranks cannot find rank 0.",
            "start the ranks by srun, inside the job, and pass Slurm's variables on to them.",
        )
    return topology.hosts[0]


def _missing(name: str, meaning: str) -> UsageError:
    return UsageError(
        f"RANK and WORLD_SIZE are set, but {name} is missing or wrong.",
        "The ranks cannot find each other.",
        f"set {name} to {meaning}; or start them with `hvdtrain launch`, horovodrun or mpirun.",
    )


def _derived_ports(job: str) -> tuple[int, ...]:
    digest = hashlib.sha256(job.encode()).digest()
    words = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * _CANDIDATES, 2)]
    return tuple(dict.fromkeys(_FIRST_PORT + word % _PORTS for word in words))


def resolve(host: str) -> str:
    """The IPv4 address of `host`: Horovod's store client knows no other kind. HvdtrainError where there is none."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise HvdtrainError(
            f"The host name {host} does not resolve here: {error.strerror or error}.",
            "The ranks meet on that host, at rank 0.",
            f"add {host} to the name service or to /etc/hosts of {socket.gethostname()}, or give an address.",
        ) from error


def address_to_serve(point: MeetingPoint, topology: Topology) -> str:
    """The one address on which rank 0 listens. Many systems resolve a host's own name to loopback, which only that host
    reaches; where other hosts take part, the address that leads to them is used instead."""
    address = resolve(point.host)
    is_asked_for = point.host == "localhost" or point.host.startswith("127.")
    if not ipaddress.ip_address(address).is_loopback or topology.num_nodes == 1 or is_asked_for:
        return address
    others = [host for host in topology.hosts if host != point.host]
    conflict = "Rank 0 cannot tell on which interface the other hosts are."
    hint = "set MASTER_ADDR to the address of rank 0's host on the network that the hosts share."
    far = resolve(others[0]) if others else "192.0.2.1"  # RFC 5737: any far host
    return source_address(far, HvdtrainError, conflict, hint)


def interface_of(address: str) -> str:
    """The network interface that bears `address`; HvdtrainError if none does."""
    import psutil  # type: ignore[import-untyped]  # Horovod itself needs it, so it is there

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    if ipaddress.ip_address(address).is_loopback:
        return "lo"  # all of 127.0.0.0/8 is, though only 127.0.0.1 is listed
    raise HvdtrainError(
        f"No network interface of {socket.gethostname()} has the address {address}.",
        "Horovod is told its interface by name.",
        "name it in HOROVOD_GLOO_IFACE.",
    )
