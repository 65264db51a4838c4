"""Which rank runs where: hosts are filled one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.launch.hosts import Host


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """One worker among the others, as Horovod counts: cross rank and size count the hosts with this local rank.

    Attributes:
        rank, size: among all workers.
        local_rank, local_size: among those of its host.
        cross_rank, cross_size: among those of other hosts with the same local rank.
        host: the name by which Horovod tells hosts apart.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str

    @property
    def variables(self) -> dict[str, str]:
        """HOROVOD_RANK and so on."""
        numbers = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        named = {f"HOROVOD_{name.upper()}": str(getattr(self, name)) for name in numbers}
        return {**named, "HOROVOD_HOSTNAME": self.host}


def assign_ranks(hosts: Sequence[Host], np: int) -> list[RankAssignment]:
    """The places of `np` workers, in the order of their ranks; `hosts` have at least as many slots."""
    used: list[tuple[str, int]] = []
    left = np
    for host in hosts:
        if left > 0:
            used.append((host.name, min(host.slots, left)))
            left -= used[-1][1]
    places: list[RankAssignment] = []
    for number, (name, workers) in enumerate(used):
        for local_rank in range(workers):
            alike = [i for i, (_, others) in enumerate(used) if others > local_rank]
            places.append(RankAssignment(len(places), np, local_rank, workers, alike.index(number), len(alike), name))
    return places
