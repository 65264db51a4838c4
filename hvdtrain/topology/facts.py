"""Facts: whole numbers, each with what decided it: read from a table of variable names, or assumed, and checked.

What is assumed is marked "assumed: …" unless it follows from what is known. Rank and size are never assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import UsageError

EXPLAIN = "`hvdtrain env --explain` shows every variable seen; unset the one that another launcher left behind."

ASSUMED = "assumed: "
DERIVED = "derived: "

ALONE = ASSUMED + "no variable tells who shares this node, so one process per node"
EVEN = ASSUMED + "every node has the same number of processes"
LOCAL_IS_RANK = ASSUMED + "local rank equals rank, so one node"
AT_LEAST = ASSUMED + "no variable tells the local size, so the least that fits the local rank"
ONE_NODE = DERIVED + "one node"
ALL_LOCAL = DERIVED + "all processes are on this node"

Env = Mapping[str, str]
Table = Mapping[str, tuple[str, ...]]  # fact name → the variables that may hold it; the first one that is set decides


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and its source: "VARIABLE=value", "derived: …" or "assumed: …"."""

    value: int
    source: str

    @property
    def is_assumed(self) -> bool:
        return self.source.startswith(ASSUMED)


Facts = Mapping[str, Fact]


def read_table(table: Table, env: Env) -> Facts:
    """The facts whose variables are set; raises UsageError for one that is not a whole number."""
    facts = {}
    for name, variables in table.items():
        variable = next((v for v in variables if v in env), None)
        if variable is not None:
            facts[name] = Fact(_whole_number(variable, env[variable]), f"{variable}={env[variable]}")
    return facts


def _whole_number(variable: str, text: str) -> int:
    # int() alone would also take "1_000", " 3" and other scripts' digits, which no launcher writes.
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(
            f"{variable} is {text!r}.",
            "Ranks and sizes are whole numbers, 0 or more, of at most nine digits.",
            f"unset {variable}, or let the launcher set it.",
        )
    return int(text)


def require_consistent(facts: Facts) -> None:
    """Raise UsageError unless all six facts fit together: each number below its count, each node with a process."""
    for name in ("size", "local_size", "num_nodes"):
        if facts[name].value < 1:
            raise _conflict(facts, name, "It must be 1 or more.")
    for name, bound in (("rank", "size"), ("local_rank", "local_size"), ("node_rank", "num_nodes")):
        if facts[name].value >= facts[bound].value:
            raise _conflict(facts, name, f"It must be less than {bound}, {_cited(facts, bound)}.")
    size, local_size, num_nodes = (facts[name].value for name in ("size", "local_size", "num_nodes"))
    if num_nodes == 1 and local_size != size:
        raise _conflict(facts, "local_size", f"One node holds all {_cited(facts, 'size')} processes.")
    if local_size + num_nodes - 1 > size:
        nodes = f"{_cited(facts, 'num_nodes')} nodes with one process or more each"
        raise _conflict(facts, "local_size", f"With {nodes}, that is more than the size, {_cited(facts, 'size')}.")


def _cited(facts: Facts, name: str) -> str:
    return f"{facts[name].value} ({facts[name].source})"


def _conflict(facts: Facts, name: str, conflict: str) -> UsageError:
    return UsageError(f"{name} is {_cited(facts, name)}.", conflict, EXPLAIN)


def assume_place(facts: Facts) -> Facts:
    """All six facts, given rank and size and whichever others are known."""
    return assume_nodes(assume_local(facts))


def assume_local(facts: Facts) -> Facts:
    """Add the missing one, or both, of local rank and local size."""
    if "local_size" not in facts:
        facts = {**facts, "local_size": _local_size(facts)}
    if "local_rank" not in facts:
        rank, local_size = facts["rank"].value, facts["local_size"].value
        source = ONE_NODE if local_size == facts["size"].value else EVEN
        source = ALONE if facts["local_size"].source == ALONE else source
        facts = {**facts, "local_rank": Fact(rank % max(local_size, 1), source)}
    return facts


def _local_size(facts: Facts) -> Fact:
    rank, size = facts["rank"].value, facts["size"].value
    local_rank = facts["local_rank"].value if "local_rank" in facts else None
    nodes = facts["num_nodes"].value if "num_nodes" in facts else 0
    if nodes == 1:
        return Fact(size, ONE_NODE)
    if nodes > 1:
        return Fact(max(-(-size // nodes), (local_rank or 0) + 1), EVEN)
    if local_rank is None:
        return Fact(1, ALONE)
    return Fact(size, LOCAL_IS_RANK) if local_rank == rank else Fact(local_rank + 1, AT_LEAST)


def assume_nodes(facts: Facts) -> Facts:
    """Add the missing one, or both, of node rank and number of nodes, given the four others.

    Only when all processes share one node does this follow from the rest: three nodes with 3, 2 and 1 processes look to
    the first like two nodes with 3 each.
    """
    if facts["local_size"].value == facts["size"].value:
        source = facts["local_size"].source if facts["local_size"].is_assumed else ALL_LOCAL
        nodes = {"node_rank": Fact(0, source), "num_nodes": Fact(1, source)}
    else:
        node_rank, num_nodes = _even_nodes(facts)
        nodes = {"node_rank": Fact(node_rank, EVEN), "num_nodes": Fact(num_nodes, EVEN)}
    return {**nodes, **facts}


def _even_nodes(facts: Facts) -> tuple[int, int]:
    """Node rank and number of nodes if ranks fill one node after the other, or else are dealt out node by node."""
    rank, size, local_rank, local_size = (facts[n].value for n in ("rank", "size", "local_rank", "local_size"))
    local_size = max(local_size, 1)
    num_nodes = -(-size // local_size)
    dealt_out = rank % local_size != local_rank and num_nodes > 0 and rank // num_nodes == local_rank
    return (rank % num_nodes if dealt_out else rank // local_size), num_nodes
