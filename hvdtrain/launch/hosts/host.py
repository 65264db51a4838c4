"""One host with its slots, what a host may be called, lists such as `a:4,b:4`, and which rank runs where.

Names end up in the command lines of ssh and mpirun, so what could be read there as an option or by a shell is refused.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hvdtrain.errors import UsageError
from hvdtrain.topology.topology import RankAssignment, assign_places

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_SLOTS = 65_536
MAX_NAME = 253  # characters of a host name: RFC 1123, section 2.1

# Underscores are not part of RFC 1123, but machines are called so, and they harm nobody.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_LIKE_IPV4 = re.compile(r"[0-9.]+")
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: its name or address (IPv6 without brackets), how many workers it may run, and where something states
    it, the numbers of the GPUs that local ranks 0, 1, … use. Raises UsageError: an invalid name, or no slots."""

    name: str
    slots: int
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_host_name(self.name)
        if not 1 <= self.slots <= MAX_SLOTS:
            raise UsageError(
                f"Host {self.name} has {self.slots} slots.",
                f"A host runs between 1 and {MAX_SLOTS} workers.",
                "leave the host out, or give it a slot for each worker.",
            )

    @property
    def is_local(self) -> bool:
        """Whether this name always means the machine that asks."""
        return self.name.lower() in LOCAL_NAMES

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.name

    @property
    def visible_devices(self) -> str | None:
        """Value for CUDA_VISIBLE_DEVICES; None where workers use the GPUs 0, 1, … anyway."""
        return None if self.devices == tuple(range(len(self.devices))) else ",".join(map(str, self.devices))

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if self.is_ipv6 else f"{self.name}:{self.slots}"


def require_host_name(name: str, where: str = "") -> None:
    """Raise UsageError unless `name` is a host name or an address; `where` begins the message, e.g. "hosts.txt:3: "."""
    if _is_address(name) or (len(name) <= MAX_NAME and _NAME.fullmatch(name) and not _LIKE_IPV4.fullmatch(name)):
        return
    if name.startswith("-"):
        conflict = "A name that begins with - would be read as an option of ssh or mpirun."
    elif "@" in name:
        conflict = "Users are not part of a host's name here; ssh takes them from its own configuration."
    else:
        conflict = "Host names have letters, digits, - and . only; addresses are IPv4 or IPv6."
    raise UsageError(
        f"{where}{name[:80]!r} is not a host name.", conflict, "write hosts as name:slots, e.g. node1:4,node2:4."
    )


def _is_address(name: str) -> bool:
    address, percent, zone = name.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        return False  # ipaddress takes anything as a zone, a shell's metacharacters too
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return False
    return version == 6 or not percent


def total_slots(hosts: Iterable[Host]) -> int:
    return sum(host.slots for host in hosts)


def join_hosts(mentions: Iterable[tuple[str, int | None]], where: str) -> tuple[Host, ...]:
    """Hosts in the order of their first mention.

    A name without slots means one slot a mention, as in machine files that repeat a host for each worker. A name that
    has slots occurs once: `a:4,a:4` is more likely a typo of `a:4,b:4` than a request for eight workers on one host.

    `mentions` are (name, slots or None) as written in what messages call `where`. Raises UsageError: no hosts at all,
    or a host with slots that is there twice.
    """
    hosts: dict[str, Host] = {}
    stated: set[str] = set()
    for name, slots in mentions:
        key = name.lower()
        if key in hosts and (slots is not None or key in stated):
            raise UsageError(
                f"{where} names host {name} twice.",
                "Which number of slots is meant cannot be told.",
                f"write {name} once, with all its slots.",
            )
        if slots is not None:
            stated.add(key)
        hosts[key] = replace(hosts[key], slots=hosts[key].slots + 1) if key in hosts else Host(name, slots or 1)
    if not hosts:
        raise UsageError(f"{where} names no host.", "There is nowhere to start a worker.", "name one, e.g. node1:4.")
    return tuple(hosts.values())


def parse_host_list(text: str) -> tuple[Host, ...]:
    """Hosts of `a:4,b:4`; `a` alone is one slot, IPv6 addresses are in brackets: `[fe80::1]:4`. Raises UsageError: a
    name or an invalid number, a host with slots that is there twice."""
    return join_hosts([parse_name_and_slots(item, "-H: ") for item in text.split(",")], "-H")


def parse_name_and_slots(text: str, where: str) -> tuple[str, int | None]:
    """`a:4` → ("a", 4), `a` → ("a", None), `[::1]:4` → ("::1", 4); `where` begins the message, e.g. "hosts.txt:3: "."""
    text = text.strip()
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        name, slots = bracketed[1], bracketed[2]
        if ":" not in name:
            raise UsageError(
                f"{where}{text[:80]!r} has brackets.", "These are for IPv6 addresses.", "write the name without them."
            )
    elif text.count(":") > 1:
        raise UsageError(
            f"{where}{text[:80]!r} has several colons.",
            "Where an IPv6 address ends and the slots begin cannot be told.",
            "put the address in brackets, e.g. [fe80::1]:4.",
        )
    else:
        name, colon, rest = text.partition(":")
        slots = rest if colon else None
    require_host_name(name, where)
    return name, None if slots is None else parse_slots(slots, name, where)


def parse_slots(text: str, name: str, where: str) -> int:
    """A whole number of slots, 1 or more."""
    if not (text.isascii() and text.isdigit() and int(text[:7]) >= 1):
        raise UsageError(
            f"{where}the slots of {name} are {text[:80]!r}.",
            "A host runs a whole number of workers, 1 or more.",
            f"write {name}:4 for four, or leave the host out.",
        )
    if len(text) > 6:
        fact = f"{where}the slots of {name} are {text[:80]}."
        raise UsageError(fact, f"A host runs {MAX_SLOTS} workers at most.", f"write {name}:4 for four.")
    return int(text)


def assign_ranks(hosts: Sequence[Host], np: int) -> list[RankAssignment]:
    """The places of `np` workers, in the order of their ranks; `hosts` have at least as many slots."""
    return assign_places([host.name for host in hosts for _ in range(host.slots)][:np])
