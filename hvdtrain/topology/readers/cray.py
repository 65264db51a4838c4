"""Cray's PALS (`mpiexec`) and ALPS (`aprun`) without PMI: they tell a rank, and by no variable the size.

PALS passes on PALS_RANKID, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE and PALS_NODEID (its pals.h). PALS_NRANKS, which may be
there, is what `mpiexec` was told by default, and not what it started. By default both set PMI's variables, which come
first: `hvdtrain.topology.readers.pmi`.
"""

from __future__ import annotations

from collections.abc import Callable

from hvdtrain.topology.facts import Env
from hvdtrain.topology.unjoined import Unjoined

_HINT = "start it so that PMI_RANK and PMI_SIZE are set{}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


def _numbered(variable: str) -> Callable[[Env], str | None]:
    def others(env: Env) -> str | None:
        if variable not in env:
            return None
        return f"{variable}={env[variable]} numbers this process among others, but no variable tells how many."

    return others


PALS = Unjoined(
    "Cray PALS",
    ("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID"),
    _numbered("PALS_RANKID"),
    _HINT.format(" (`mpiexec --pmi cray`)"),
)
ALPS = Unjoined("Cray ALPS", ("ALPS_APP_PE",), _numbered("ALPS_APP_PE"), _HINT.format(""))
