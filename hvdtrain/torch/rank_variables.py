"""RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE for scripts that read them before they join the other ranks.

torchrun sets them; horovodrun, mpirun and `hvdtrain launch` have variables of their own.
"""

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
"""After Slurm's variables these would say that an address to meet at is known, too."""


def set_rank_variables(env: MutableMapping[str, str]) -> None:
    """Add the variables that are missing, where the launcher of a world of fixed size states the facts."""
    with suppress(UsageError):  # `init` raises it again
        topology = detect_topology(env)
        if topology.launcher in _THEIR_OWN or "HOROVOD_ELASTIC" in env:
            return
        for variable, fact in _FACTS.items():
            if not topology.source.get(fact, "").startswith(ASSUMED):
                env.setdefault(variable, str(getattr(topology, fact)))
