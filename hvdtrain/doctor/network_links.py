"""Which network the hosts share, which host can connect to which, and how fast: measured between agents, then checked.

Each host's address for the job is chosen from facts alone; links are measured two by two.

Plain TCP streams, not Horovod: each direction of each link alone, so that the slow one can be named. An allreduce knows
only its slowest link's time.
"""

import ipaddress
import secrets
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Any

from hvdtrain.doctor.findings import Choice, Facts, Finding, HostFacts, Link, Links
from hvdtrain.launch.ssh.agent_client import Request, ask_at_once
from hvdtrain.launch.ssh.link import AgentError, HostLink
from hvdtrain.units import in_rate

BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "podman", "kube", "tun", "tap", "ifb")
"""Beginnings of names of interfaces that lead to containers or machines inside a host, never to another host."""

ALL_PAIRS_UP_TO = 8
"""Up to this number of hosts, every pair is measured; with more, each host with its neighbour in the ring."""

SLOW, ALIKE = 0.6, 2.0
"""The slowest link is named if it has less than SLOW of what the faster half has, with those that have at most ALIKE
times its rate: short streams scatter on busy hosts."""

_REACH_SECONDS, _STREAM_SECONDS, _QUIET_SECONDS = 5.0, 0.5, 10.0
_LISTEN_SECONDS = 300.0
_MARGIN_SECONDS = 10.0

_AGAIN = 2
"""How often links that seem slow are measured again. The best stream counts: a process that waited for a processor, or
other traffic for a moment, makes a stream slower, and nothing makes it faster than its link."""


def choose_interfaces(hosts: HostFacts, nics: Sequence[str] = ()) -> Choice:
    """The interface of each host; hosts without one are omitted.

    The first of `nics` that a host has; else the one whose address other hosts know the host's name by; else one on a
    network that all hosts have; else the first.
    """
    chosen = {}
    for host, facts in hosts.items():
        usable = [interface for interface in facts["interfaces"] if interface["name"] in nics or _leads_out(interface)]
        best = next((interface for nic in nics for interface in usable if interface["name"] == nic), None)
        if not nics:
            best = _known_by_name(usable, host, hosts) or _common(usable, hosts) or next(iter(usable), None)
        if best is not None:
            chosen[host] = best
    return chosen


def _leads_out(interface: Facts) -> bool:
    loopback = ipaddress.ip_address(interface["address"]).is_loopback
    return not loopback and interface["up"] and not interface["name"].startswith(BRIDGES)


def _known_by_name(usable: Sequence[Facts], host: str, hosts: HostFacts) -> Facts | None:
    known = [facts["names"].get(host) for other, facts in hosts.items() if other != host]
    addresses = {address for answer in known if isinstance(answer, list) for address in answer}
    return next((interface for interface in usable if interface["address"] in addresses), None)


def _common(usable: Sequence[Facts], hosts: HostFacts) -> Facts | None:
    """Of a network that is on every host, with another address on each: docker0 is on all with the same one."""
    for interface in usable:
        there = [
            [other["address"] for other in facts["interfaces"] if other["network"] == interface["network"]]
            for facts in hosts.values()
        ]
        if all(there) and len({addresses[0] for addresses in there}) == len(hosts):
            return interface
    return None


def measure_links(agents: Mapping[str, HostLink], chosen: Choice) -> Links:
    """Connect every host with every other, both ways; then measure. Takes about a second per round of pairs.

    Raises AgentError where a host cannot listen on its address.
    """
    token = secrets.token_hex(16)
    broken: dict[Link, str] = {}
    doors: dict[str, dict[str, Any]] = {}
    for host, agent in agents.items():
        address = chosen[host]["address"]
        port = agent.ask("listen", _REACH_SECONDS, address=address, token=token, seconds=_LISTEN_SECONDS)
        doors[host] = {"address": address, "port": port, "token": token}
    everybody = list(permutations(agents, 2))
    for together in rounds(everybody):
        requests = [(agents[a], "connect", {**doors[b], "seconds": _REACH_SECONDS}) for a, b in together]
        _answers(together, requests, _REACH_SECONDS, broken)
    rates: dict[Link, float] = {}
    neighbours = {frozenset(pair) for pair in pairwise([*agents, next(iter(agents))])}
    measured = [link for link in everybody if len(agents) <= ALL_PAIRS_UP_TO or frozenset(link) in neighbours]
    for together in rounds([link for link in measured if link not in broken]):
        rates |= _stream(together, agents, doors, broken)
    for attempt in range(1, 1 + _AGAIN):
        for together in rounds(slow_links(rates)):
            failed: dict[Link, str] = {}  # what has worked once is not broken
            for link, rate in _stream(together, agents, doors, failed, attempt).items():
                rates[link] = max(rate, rates[link])
    return Links(rates, broken)


def _stream(
    links: Sequence[Link],
    agents: Mapping[str, HostLink],
    doors: Mapping[str, Mapping[str, Any]],
    broken: dict[Link, str],
    attempt: int = 0,
) -> dict[Link, float]:
    """Bytes/s of links that share no host, all at once."""
    timing = {"seconds": _STREAM_SECONDS, "deadline": _QUIET_SECONDS}
    names = {(a, b): f"{list(agents).index(a)}-{list(agents).index(b)}-{attempt}" for a, b in links}
    sends = [(agents[a], "send", {**doors[b], **timing, "stream": names[a, b]}) for a, b in links]
    sent = list(_answers(links, sends, _STREAM_SECONDS + _QUIET_SECONDS, broken))
    asks = [(agents[b], "received", {"stream": names[a, b], "seconds": _QUIET_SECONDS}) for a, b in sent]
    received = _answers(sent, asks, _QUIET_SECONDS, broken)
    return {link: answer["bytes"] / answer["seconds"] for link, answer in received.items()}


def _answers(
    links: Sequence[Link], requests: Sequence[Request], seconds: float, broken: dict[Link, str]
) -> dict[Link, Any]:
    """Answers of the requests that did not fail; the reasons of the others go into `broken`."""
    answers = dict(zip(links, ask_at_once(requests, seconds + _MARGIN_SECONDS), strict=True))
    broken.update({link: str(answer) for link, answer in answers.items() if isinstance(answer, AgentError)})
    return {link: answer for link, answer in answers.items() if link not in broken}


def rounds(links: Sequence[Link]) -> Iterator[list[Link]]:
    """The links, in groups in which no host occurs twice."""
    left = list(links)
    while left:
        busy: set[str] = set()
        together = []
        for link in left:
            if not busy & set(link):
                together.append(link)
                busy |= set(link)
        left = [link for link in left if link not in together]
        yield together


def slow_links(rates: Mapping[Link, float]) -> list[Link]:
    """The slowest link and those like it, by SLOW and ALIKE; none where all are about as fast as the faster half."""
    usual = statistics.median(sorted(rates.values())[len(rates) // 2 :]) if rates else 0.0
    least = min(rates.values(), default=0.0)
    if least >= SLOW * usual:
        return []
    return [link for link, rate in rates.items() if rate < min(SLOW * usual, ALIKE * least) or rate == least]


def link_findings(links: Links) -> list[Finding]:
    """Links that do not connect, and the slow ones, named."""
    findings = [_unreachable(link, reason) for link, reason in links.broken.items()]
    if not findings:
        findings.append(Finding("ports", "ok", "every host reaches every other on ports of the kernel's choice"))
    return [*findings, *_speeds(links.rates)]


def _unreachable(link: Link, reason: str) -> Finding:
    hint = (
        f"let the firewall of {link[1]} accept TCP from the other hosts on all ports above 1023, "
        "or choose another network with --nic: workers listen where the kernel has a free port."
    )
    return Finding("ports", "fail", f"{link[0]} does not reach {link[1]}: {reason}", hint)


def _speeds(rates: Mapping[Link, float]) -> Iterator[Finding]:
    if not rates:
        return
    least = min(rates.values())
    slow = slow_links(rates)
    if not slow:
        yield Finding("links", "ok", f"{len(rates)} directions, {in_rate(least)} or more each")
        return
    others = [rate for link, rate in rates.items() if link not in slow]
    rest = f", the others {in_rate(statistics.median(others))}" if others else ""
    fact = f"{_named(slow, rates)}: {in_rate(least)}{rest}"
    hint = "look at its cable, port and other traffic: every step of a ring waits for its slowest link."
    yield Finding("links", "warn", fact, hint)


def _named(slow: Sequence[Link], rates: Mapping[Link, float]) -> str:
    """The shortest true description: all links from one host, to one host, both, or one by one."""
    for host in dict.fromkeys(host for link in slow for host in link):
        out = {link for link in rates if link[0] == host}
        into = {link for link in rates if link[1] == host}
        if len(out) > 1 and set(slow) == out:
            return f"from {host} to all others"
        if len(into) > 1 and set(slow) == into:
            return f"from all others to {host}"
        if len(out) > 1 and set(slow) == out | into:
            return f"{host} with all others, both ways"
    pairs = sorted(slow, key=lambda link: rates[link])
    shown = []
    for a, b in pairs:
        both = (b, a) in slow
        text = f"{min(a, b)} <-> {max(a, b)}" if both else f"{a} -> {b}"
        if text not in shown:
            shown.append(text)
    return ", ".join(shown)
