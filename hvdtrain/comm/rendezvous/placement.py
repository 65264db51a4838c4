"""From "who is where" to the variables that tell Horovod a rank's place."""

from __future__ import annotations

from collections.abc import Sequence

Host = tuple[str, str]
"""Name and address of a rank's host. Two hosts may bear one name (containers do), or share an address (loopback)."""


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
