"""`a:4,b:4`, and the parts of it that hostfiles share."""

from __future__ import annotations

import re

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import MAX_SLOTS, Host, join_hosts, require_host_name

_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?")


def parse_host_list(text: str, where: str = "-H") -> tuple[Host, ...]:
    """Hosts of `a:4,b:4`; `a` alone is one slot, IPv6 addresses stand in brackets: `[fe80::1]:4`.

    Raises:
        UsageError: a name or a number that is none, a host with slots that is there twice.
    """
    return join_hosts([parse_name_and_slots(item, f"{where}: ") for item in text.split(",")], where)


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
    if text.isascii() and text.isdigit() and len(text) <= 6 and int(text) >= 1:
        return int(text)
    if text.isascii() and text.isdigit() and int(text[:7]) >= 1:
        raise UsageError(
            f"{where}the slots of {name} are {text[:80]}.",
            f"A host runs {MAX_SLOTS} workers at most.",
            f"write {name}:4 for four.",
        )
    raise UsageError(
        f"{where}the slots of {name} are {text[:80]!r}.",
        "A host runs a whole number of workers, 1 or more.",
        f"write {name}:4 for four, or leave the host out.",
    )
