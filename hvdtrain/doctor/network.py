"""Interfaces, host names and clocks: what each host has, and whether the hosts agree."""

import ipaddress
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.doctor.findings import Choice, Facts, Finding, HostFacts, each_value, on_each_host
from hvdtrain.launch.ssh.host_addresses import ask_interface, interface_address
from hvdtrain.topology.control_group import read_text

# linux/sockios.h; netdevice(7)
_GET_FLAGS, _GET_MASK, _GET_MTU = 0x8913, 0x891B, 0x8921
_ALL = "255.255.255.255"  # the mask of a point-to-point link that has none
_UP = 1  # IFF_UP of linux/if.h


def interfaces() -> list[dict[str, Any]]:
    """Each with an IPv4 address: `name`, `address`, `network` ("10.0.0.0/24"), `mtu`, `speed` (Mbit/s, None where the
    driver does not know), `virtual` (no hardware, so that a speed is made up), `up`. Horovod's store knows IPv4 only.
    """
    known = ((index, name, interface_address(name)) for index, name in socket.if_nameindex())
    return [_interface(index, name, address) for index, name, address in known if address is not None]


def _interface(index: int, name: str, address: str) -> dict[str, Any]:
    mtu, flags = ask_interface(name, _GET_MTU) or b"", ask_interface(name, _GET_FLAGS) or b""
    mask = interface_address(name, _GET_MASK) or _ALL
    return {
        "name": name,
        "address": address,
        "network": str(ipaddress.ip_network(f"{address}/{mask}", strict=False)),
        "mtu": int.from_bytes(mtu[:4], sys.byteorder),
        "up": bool(int.from_bytes(flags[:2], sys.byteorder) & _UP),
        **_hardware(name, index),
    }


def _hardware(name: str, index: int) -> dict[str, Any]:
    folder = Path("/sys/class/net") / name
    if _number(folder / "ifindex") != index:  # a container may show another network's /sys
        return {"speed": None, "virtual": False}
    speed = _number(folder / "speed")
    return {"speed": speed if speed and speed > 0 else None, "virtual": not (folder / "device").exists()}


def _number(path: Path) -> int | None:
    text = read_text(path)  # reading `speed` of an interface without a link is EINVAL
    return int(text) if text and text.lstrip("-").isdigit() else None


def resolved_names(names: Iterable[str]) -> dict[str, Any]:
    """Name → its IPv4 addresses here, in the resolver's order, or the resolver's error as a text."""
    resolved: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        try:
            answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            resolved[name] = list(dict.fromkeys(answer[4][0] for answer in answers))
        except OSError as error:
            resolved[name] = error.strerror or str(error)
    return resolved


_CLOCK_WARN_SECONDS = 1.0


def twin_findings(hosts: HostFacts) -> list[Finding]:
    """Names that mean one machine: one start of one kernel, with the same addresses (containers share only the first).

    None where the hosts are all different, or this is unknown.
    """
    machines: dict[tuple[str, frozenset[str]], list[str]] = {}
    for host, facts in hosts.items():
        boot = facts["machine"]["boot"]
        if boot is not None:
            addresses = frozenset(interface["address"] for interface in facts["interfaces"])
            machines.setdefault((boot, addresses), []).append(host)
    hint = "name it once, with the slots of all its names together."
    return [
        Finding("hosts", "fail", f"{' and '.join(names)} are one machine", hint)
        for names in machines.values()
        if len(names) > 1
    ]


def name_findings(hosts: HostFacts) -> list[Finding]:
    """Whether each host's name means the same everywhere, and its own name not loopback. For several hosts."""
    findings = [*_unknown_names(hosts), *on_each_host(hosts, _loopback_name), *_different_answers(hosts)]
    return findings or [Finding("host names", "ok", "mean the same on all hosts")]


def _unknown_names(hosts: HostFacts) -> Iterator[Finding]:
    for host, facts in hosts.items():
        for name in hosts:
            if not isinstance(answer := facts["names"].get(name, []), list):
                hint = f"add {name} to DNS, or to /etc/hosts on {host}."
                yield Finding("host names", "fail", f"{name} does not resolve: {answer}", hint, host)


def _loopback_name(facts: Facts) -> Iterator[Finding]:
    addresses = facts["names"].get(facts["hostname"])
    if isinstance(addresses, list) and addresses and ipaddress.ip_address(addresses[0]).is_loopback:
        fact = f"its own name {facts['hostname']} resolves to {addresses[0]}"
        hint = "give the name the host's network address in its /etc/hosts: MPI and Horovod tell it to other hosts."
        yield Finding("host names", "warn", fact, hint)


def _different_answers(hosts: HostFacts) -> Iterator[Finding]:
    for name in hosts:
        answers = {
            host: tuple(sorted(facts["names"][name]))
            for host, facts in hosts.items()
            if host != name and isinstance(facts["names"].get(name), list)
        }
        if len(set(answers.values())) > 1:
            parts = "; ".join(f"{', '.join(addresses)} on {host}" for host, addresses in answers.items())
            hint = "let all hosts use the same name server, or the same lines in /etc/hosts."
            yield Finding("host names", "warn", f"{name} resolves to {parts}", hint)


def interface_findings(hosts: HostFacts, chosen: Choice, nics: Sequence[str]) -> list[Finding]:
    """Whether all hosts are on one network, by interfaces of one name, with one MTU. For several hosts, or for the
    `nics` of one.
    """
    missing = [host for host in hosts if host not in chosen]
    if missing:
        wanted = f"none of {', '.join(nics)}" if nics else "no network interface with an IPv4 address"
        hint = "`ip -brief address` lists them there; name one that each host has with --nic."
        return [Finding("network", "fail", f"it has {wanted}", hint, host) for host in missing]
    first = next(iter(chosen.values()))
    speed = f", {first['speed']} Mbit/s" if first["speed"] and not first["virtual"] else ""
    names, networks = (", ".join(dict.fromkeys(nic[key] for nic in chosen.values())) for key in ("name", "network"))
    return [Finding("network", "ok", f"{names}, {networks}, MTU {first['mtu']}{speed}"), *_unlike(chosen)]


_UNLIKE = {
    "name": (
        "interface is",
        "start jobs with `hvdtrain launch ssh`, which tells each host its own, or give interfaces one name.",
    ),
    "network": (
        "network is",  # not an error: routers may connect them, which the measurement of links then proves
        "see that these networks are meant: traffic between them passes a router. --nic chooses others.",
    ),
    "mtu": ("MTU is", "set one MTU on all hosts and switches: larger packets are lost on the way to the smaller one."),
    "speed": (
        "speed in Mbit/s is",
        "look at cable and port of the slower one: every step of a ring waits for its slowest link.",
    ),
}
"""What should be equal on all hosts → what it is called, and what to do where it is not."""


def _unlike(chosen: Choice) -> Iterator[Finding]:
    for key, (what, hint) in _UNLIKE.items():
        known = [nic[key] for nic in chosen.values() if key != "speed" or (nic["speed"] and not nic["virtual"])]
        if len(set(known)) > 1:
            values = {host: nic[key] for host, nic in chosen.items()}
            yield Finding("network", "warn", f"the {what} {each_value(values)}", hint)


def clock_findings(offsets: Mapping[str, float]) -> list[Finding]:
    """Host → seconds by which its clock is ahead of this machine's."""
    if len(offsets) < 2:
        return []
    spread = max(offsets.values()) - min(offsets.values())
    if spread <= _CLOCK_WARN_SECONDS:
        return [Finding("clock", "ok", f"hosts differ by {spread * 1e3:.0f} ms at most")]
    parts = ", ".join(f"{host} {offset:+.1f} s" for host, offset in offsets.items())
    hint = "start chrony or ntpd there: logs of ranks cannot be ordered, and shared disks misjudge what is new."
    return [Finding("clock", "warn", f"hosts differ by {spread:.1f} s: {parts}", hint)]
