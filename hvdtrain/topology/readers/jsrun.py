"""IBM's jsrun, where the MPI under it sets no variables of its own. Spectrum MPI sets Open MPI's, which come first."""

from __future__ import annotations

from hvdtrain.topology.assume import assume_place
from hvdtrain.topology.facts import Env, Facts
from hvdtrain.topology.reader import Reader


def _place(facts: Facts, _env: Env) -> Facts:
    return assume_place(facts)


def _hosts(_facts: Facts, _env: Env) -> tuple[str, ...]:
    return ()


READER = Reader(
    platform="jsrun",
    launcher="jsrun",
    table={
        "rank": ("JSM_NAMESPACE_RANK",),
        "size": ("JSM_NAMESPACE_SIZE",),
        "local_rank": ("JSM_NAMESPACE_LOCAL_RANK",),
        "local_size": ("JSM_NAMESPACE_LOCAL_SIZE",),
    },
    place=_place,
    hosts=_hosts,
)
