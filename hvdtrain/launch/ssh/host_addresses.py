"""Which machine a name means, which address hosts can call, and which interface leads there: standard library only."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence

from hvdtrain.errors import UsageError
from hvdtrain.topology.source_address import LOOPBACK, source_address

_SIOCGIFADDR = 0x8915  # linux/sockios.h; netdevice(7)


def is_this_machine(name: str) -> bool:
    """Whether a host's name means the machine that asks, so that no ssh is needed."""
    addresses = _resolved(name)
    return name == socket.gethostname() or (bool(addresses) and all(map(is_own_address, addresses)))


def _resolved(name: str) -> list[str]:
    """The IPv4 addresses of a host; none where only ssh's configuration knows it. Horovod knows no IPv6."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    except OSError:
        return []


def address_for_hosts(callers: Mapping[str, str], nics: Sequence[str]) -> str:
    """The address of this machine that the hosts are told.

    `callers` maps a host to the address from which its sshd was called, "" where the host is this machine. Raises
    UsageError: none can be found.
    """
    for nic in nics:
        if address_of_nic := interface_address(nic):
            return address_of_nic
    far = {host: caller for host, caller in callers.items() if caller}
    if not far:
        return LOOPBACK
    for caller in far.values():
        if is_own_address(caller):
            return caller
    for host in far:
        for address in _resolved(host):
            return _source_address(address)
    host, caller = next(iter(far.items()))
    raise UsageError(
        f"{host} was called from {caller}, which is not an IPv4 address of this machine.",
        "Workers could not find each other at it; a jump host or an address translation may stand between.",
        "name the network interface that the hosts reach with --nic, or launch from one of the hosts.",
    )


def interface_towards(address: str, nics: Sequence[str] = ()) -> str:
    """The first of `nics` that this host has; without `nics`, the one from which packets to the IPv4 `address` leave.
    Raises UsageError: there is no such interface, or no route."""
    addresses = {name: interface_address(name) for _, name in socket.if_nameindex()}
    if nics:
        interface = next((name for name in nics if addresses.get(name)), None)
        if interface is None:
            raise UsageError(
                f"None of the network interfaces {', '.join(nics)} of --nic has an IPv4 address on this host.",
                f"It has {', '.join(name for name, value in addresses.items() if value)}.",
                "name one that each host has; several are tried in their order.",
            )
        return interface
    source = _source_address(address)
    if ipaddress.ip_address(source).is_loopback:
        return "lo"  # all of 127.0.0.0/8 is, though only 127.0.0.1 is listed
    interface = next((name for name, value in addresses.items() if value == source), None)
    if interface is None:
        raise UsageError(
            f"Packets to {address} leave from {source}, which is not the first address of any interface on this host.",
            "Horovod is told its interface by name.",
            "name it with --nic.",
        )
    return interface


def interface_address(name: str, question: int = _SIOCGIFADDR) -> str | None:
    """The first IPv4 address of an interface of this host, or what `ask_interface` else answers by an address."""
    answer = ask_interface(name, question)
    return None if answer is None else socket.inet_ntoa(answer[4:8])  # sockaddr_in: 2 bytes of family, 2 of port


def ask_interface(name: str, question: int) -> bytes | None:
    """16 bytes after the name in the struct ifreq of an ioctl's answer; None: the interface has no such thing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            return fcntl.ioctl(asking, question, struct.pack("16s240x", name.encode()[:15]))[16:]
        except OSError:
            return None


def _source_address(address: str) -> str:
    conflict = "Workers find each other through the launcher at that address."
    return source_address(address, UsageError, conflict, "choose the network that all hosts share with --nic.")


def is_own_address(address: str) -> bool:
    """Whether this host bears the address, which is one of IPv4."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
