"""At which of its addresses all hosts can reach the launcher: the rendezvous server listens there, and only there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

from hvdtrain.errors import UsageError
from hvdtrain.launch.ssh.interface import interface_address, is_own_address, source_address

LOOPBACK = "127.0.0.1"


def is_this_machine(name: str) -> bool:
    """Whether a host's name means the machine that asks, so that no ssh is needed."""
    address = resolved(name)
    return address is not None and is_own_address(address)


def resolved(name: str) -> str | None:
    """The IPv4 address of a host, or None: the name may stand in ssh's configuration only. Horovod knows no IPv6."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def address_for_hosts(callers: Mapping[str, str], nics: Sequence[str]) -> str:
    """The address of this machine that the hosts are told.

    Args:
        callers: host → the address from which its sshd was called, "" where the host is this machine.
        nics: network interfaces that the user named.

    Raises:
        UsageError: none can be found.
    """
    if nics:
        own = next((address for nic in nics if (address := interface_address(nic))), None)
        if own is not None:
            return own
    far = {host: caller for host, caller in callers.items() if caller}
    if not far:
        return LOOPBACK
    for caller in far.values():
        if _is_ipv4(caller) and is_own_address(caller):
            return caller
    for host in far:
        address = resolved(host)
        if address is not None:
            return source_address(address)
    host, caller = next(iter(far.items()))
    raise UsageError(
        f"{host} was called from {caller}, which is not an IPv4 address of this machine.",
        "Workers could not find each other at it; a jump host or an address translation may stand between.",
        "name the network interface that the hosts reach with --nic, or launch from one of the hosts.",
    )


def _is_ipv4(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 4
    except ValueError:
        return False
