"""The names of a task's measures, which are the same on all ranks: their sums are added up in the order of names."""

import hashlib
from collections.abc import Sequence

from hvdtrain.errors import DivergenceError


def names_checksum(names: Sequence[str]) -> float:
    """48 bits of a hash of the names, in their order: float64 holds them exactly."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=6).digest()
    return float(int.from_bytes(digest))


def require_same_names(names_by_rank: Sequence[Sequence[str]]) -> None:
    """Raise `DivergenceError`, marked as that of all ranks, unless all ranks have measured by the same names.

    Args: `names_by_rank`: the same on all ranks; () of ranks that measure nothing.
    """
    ranks_by_names: dict[tuple[str, ...], list[str]] = {}
    for rank, names in enumerate(names_by_rank):
        if names:
            ranks_by_names.setdefault(tuple(sorted(names)), []).append(str(rank))
    if len(ranks_by_names) < 2:
        return
    (first, first_ranks), (other, other_ranks) = list(ranks_by_names.items())[:2]
    raise DivergenceError(
        f"The task's measure() names {', '.join(map(repr, first))} on rank {', '.join(first_ranks)}, "
        f"and {', '.join(map(repr, other))} on rank {', '.join(other_ranks)}.",
        "A measure is averaged over the samples of all ranks, so each rank must have it.",
        "return the same names on all ranks, whatever their samples are; a name may be absent in steps in which it is "
        "absent on all ranks.",
    ).on_all_ranks()
