"""Network interfaces of this host, and what host names mean here."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# linux/sockios.h; netdevice(7)
_GET_FLAGS, _GET_ADDRESS, _GET_MASK, _GET_MTU = 0x8913, 0x8915, 0x891B, 0x8921
_ALL = b"\0\0\0\0\xff\xff\xff\xff"  # the mask of a point-to-point link that tells none
_UP = 1  # IFF_UP of linux/if.h


def interfaces() -> list[dict[str, Any]]:
    """Each with an IPv4 address: `name`, `address`, `network` ("10.0.0.0/24"), `mtu`, `speed` (Mbit/s, None where the
    driver does not know), `virtual` (no hardware, so that a speed is made up), `up`. Horovod's store knows IPv4 only.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for index, name in socket.if_nameindex():
            address = _ask(probe, name, _GET_ADDRESS)
            if address is not None:
                mask, mtu, flags = (_ask(probe, name, question) for question in (_GET_MASK, _GET_MTU, _GET_FLAGS))
                network = ipaddress.ip_network(f"{_address(address)}/{_address(mask or _ALL)}", strict=False)
                found.append(
                    {
                        "name": name,
                        "address": _address(address),
                        "network": str(network),
                        "mtu": int.from_bytes((mtu or b"")[:4], sys.byteorder),
                        "up": bool(int.from_bytes((flags or b"")[:2], sys.byteorder) & _UP),
                        **_hardware(name, index),
                    }
                )
    return found


def _ask(probe: socket.socket, name: str, question: int) -> bytes | None:
    """What follows the name, 16 bytes, in the struct ifreq of the answer; None: the interface has no such thing."""
    try:
        return fcntl.ioctl(probe, question, struct.pack("16s240x", name.encode()[:15]))[16:]
    except OSError:  # EADDRNOTAVAIL
        return None


def _address(answer: bytes) -> str:
    """Of a struct sockaddr_in: two bytes of family, two of port, four of address."""
    return socket.inet_ntoa(answer[4:8])


def _hardware(name: str, index: int) -> dict[str, Any]:
    folder = Path("/sys/class/net") / name
    if _number(folder / "ifindex") != index:  # a container may show another network's /sys
        return {"speed": None, "virtual": False}
    speed = _number(folder / "speed")
    return {"speed": speed if speed and speed > 0 else None, "virtual": not (folder / "device").exists()}


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # reading `speed` of an interface without a link is EINVAL
        return None


def resolved_names(names: Iterable[str]) -> dict[str, Any]:
    """Name → its IPv4 addresses here, in the resolver's order, or the resolver's error as a text."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        try:
            answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            found[name] = list(dict.fromkeys(answer[4][0] for answer in answers))
        except OSError as error:
            found[name] = error.strerror or str(error)
    return found
