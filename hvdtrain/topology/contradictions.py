"""Refuse facts that contradict each other, and name the variables they came from."""

from __future__ import annotations

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Facts

EXPLAIN = "`hvdtrain env --explain` shows every variable seen; unset the one that another launcher left behind."


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
