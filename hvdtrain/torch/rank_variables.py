"""RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, where torchrun has not set them."""

from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology
from hvdtrain.topology.topology import ASSUMED

_FACTS: Final = {
    "RANK": "rank",
    "WORLD_SIZE": "size",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_size",
}
_THEIR_OWN: Final = ("single", "torchrun", "slurm")
"""Beside Slurm's variables these would say that an address to meet at is known, too."""

_announced: Final[set[str]] = set()  # the variables that `announce` has set


def set_rank_variables(env: MutableMapping[str, str]) -> None:
    """Add the variables that are missing, where the launcher of a world of fixed size states the facts.

    For scripts that read them before they join the other ranks: horovodrun, mpirun and `hvdtrain launch` have others.
    """
    with suppress(UsageError):  # `init` raises it again
        topology = detect_topology(env)
        if topology.launcher in _THEIR_OWN or "HOROVOD_ELASTIC" in env:
            return
        for variable, fact in _FACTS.items():
            if not topology.source.get(fact, "").startswith(ASSUMED):
                env.setdefault(variable, str(getattr(topology, fact)))


def announce(address: str, world_size: int, rank: int, env: MutableMapping[str, str]) -> None:
    """Add them for a process that no launcher knows.

    Args: `address`: HOST:PORT where the ranks meet; empty: MASTER_ADDR and MASTER_PORT are set.
    """
    if detect_topology(env).is_distributed and not _announced:
        return  # a launcher's; `init_process_group` compares the numbers
    host, _, port = address.rpartition(":")
    told = {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    told |= {"MASTER_ADDR": host, "MASTER_PORT": port} if address else {}
    _announced.update(told)
    env.update(told)
