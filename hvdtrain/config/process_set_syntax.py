"""The syntax of --process-sets: which workers exchange gradients with each other at every update.

node           one set for each node
0-3,4-7        sets are parted by commas; a-b is every rank from a to b
0+2,1+3        + puts ranks, or ranges of them, into one set
"""

import re
from collections.abc import Hashable, Sequence

from hvdtrain.errors import UsageError

NODE = "node"

Sets = tuple[tuple[int, ...], ...]
"""Each set's ranks in rising order; each rank is in exactly one of them."""

_RANGE = r"\d{1,7}(?:-\d{1,7})?"
_SET = rf"{_RANGE}(?:\+{_RANGE})*"
_SYNTAX = re.compile(rf"{_SET}(?:,{_SET})*", re.ASCII)
_EXAMPLES = "write node, or ranks as 0-3,4-7, or as 0+2,1+3."


def require_readable(text: str) -> None:
    """Raise `UsageError` unless `text` is "node" or sets of ranks, whatever the number of workers."""
    if text != NODE and not _SYNTAX.fullmatch(text):
        raise UsageError(
            f"--process-sets is {text!r}.", "Commas separate sets, + and - join the ranks of one set.", _EXAMPLES
        )


def resolve(text: str, nodes: Sequence[Hashable]) -> Sets:
    """The sets that `text` means.

    Args:
        text: as --process-sets.
        nodes: for each rank its node, by number or name.

    Raises:
        UsageError: a rank is in no set, in two, or does not exist.
    """
    require_readable(text)
    if text == NODE:
        of_node: dict[Hashable, list[int]] = {}
        for rank, node in enumerate(nodes):
            of_node.setdefault(node, []).append(rank)
        return tuple(tuple(ranks) for ranks in of_node.values())
    size = len(nodes)
    sets = tuple(tuple(rank for part in one.split("+") for rank in _ranks(part, size)) for one in text.split(","))
    _require_each_once(text, [rank for ranks in sets for rank in ranks], size)
    return tuple(tuple(sorted(ranks)) for ranks in sets)


def _ranks(part: str, size: int) -> range:
    first, _, last = part.partition("-")
    begin, end = int(first), int(last or first)
    if begin > end:
        raise UsageError(f"--process-sets has the range {part}.", "It ends before it begins.", _EXAMPLES)
    if end >= size:
        raise UsageError(
            f"--process-sets names rank {end}.",
            f"There are {size} workers, the last one rank {size - 1}.",
            "name each of them once, or write node.",
        )
    return range(begin, end + 1)


def _require_each_once(text: str, named: list[int], size: int) -> None:
    missing = sorted(set(range(size)) - set(named))
    twice = sorted({rank for rank in named if named.count(rank) > 1} if len(named) > len(set(named)) else ())
    if missing or twice:
        ranks = ", ".join(map(str, (missing or twice)[:8]))
        raise UsageError(
            f"--process-sets {text} names rank {ranks} {'nowhere' if missing else 'twice'}.",
            f"Each of the {size} workers exchanges gradients with exactly one set.",
            "put each rank into one set, alone if need be.",
        )
