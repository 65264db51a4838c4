"""On which network the hosts meet: each host's address for the job, chosen from facts alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.doctor.findings import Facts, HostFacts

BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "podman", "kube", "tun", "tap", "ifb")
"""Beginnings of names of interfaces that lead to containers or machines inside a host, never to another host."""

Choice = Mapping[str, Mapping[str, Any]]
"""Host → its interface for the job, as `hvdtrain.doctor.network.interfaces` describes it."""


def choose_interfaces(hosts: HostFacts, nics: Sequence[str] = ()) -> Choice:
    """Each host's interface; hosts without any are left out.

    The first of `nics` that a host has; else the one whose address other hosts know the host's name by; else one on a
    network that all hosts have; else the first.
    """
    chosen = {}
    for host, facts in hosts.items():
        usable = [interface for interface in facts["interfaces"] if interface["name"] in nics or _leads_out(interface)]
        found = (
            _named(usable, nics)
            if nics
            else _known_by_name(usable, host, hosts) or _common(usable, hosts) or next(iter(usable), None)
        )
        if found is not None:
            chosen[host] = found
    return chosen


def _leads_out(interface: Facts) -> bool:
    loopback = ipaddress.ip_address(interface["address"]).is_loopback
    return not loopback and interface["up"] and not interface["name"].startswith(BRIDGES)


def _named(usable: Sequence[Facts], nics: Sequence[str]) -> Facts | None:
    return next((own for nic in nics for own in usable if own["name"] == nic), None)


def _known_by_name(usable: Sequence[Facts], host: str, hosts: HostFacts) -> Facts | None:
    known = [facts["names"].get(host) for other, facts in hosts.items() if other != host]
    addresses = {address for answer in known if isinstance(answer, list) for address in answer}
    return next((own for own in usable if own["address"] in addresses), None)


def _common(usable: Sequence[Facts], hosts: HostFacts) -> Facts | None:
    """Of a network that is on every host, with another address on each: docker0 is on all with the same one."""
    for own in usable:
        there = [
            [other["address"] for other in facts["interfaces"] if other["network"] == own["network"]]
            for facts in hosts.values()
        ]
        if all(there) and len({addresses[0] for addresses in there}) == len(hosts):
            return own
    return None
