"""Which sums of graphs that TensorFlow has optimized add their terms in an order that depends on time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_ADDED_AS_READY = ("TemporaryVariable", "AccumulateNV2")
"""A temporary variable, to which each term is added as soon as it is ready; and what TensorFlow makes one of."""


def sums_that_depend_on_time(graphs: Iterable[Any]) -> list[str]:
    """Names of the operations, after the first collective, with those of their kinds.

    Args:
        graphs: GraphDefs, as `context.collect_graphs` gives them.

    Raises:
        AssertionError: no graph has a collective, so that nothing was looked at.
    """
    named, found = 0, []
    for graph in graphs:
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        for nodes in bodies:
            after = set(_after_collectives(nodes))
            named += len(after)
            found += [f"{n.op} {n.name}" for n in nodes if n.name in after and _depends_on_time(n)]
    assert named, "There is no collective in these graphs."
    return found


def _depends_on_time(node: Any) -> bool:
    terms = [name for name in node.input if not name.startswith("^")]
    return node.op in _ADDED_AS_READY or (node.op == "AddN" and len(terms) > 2)


def _after_collectives(nodes: Iterable[Any]) -> Iterator[str]:
    """The collectives, and all that needs what they return."""
    users: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            users[name.lstrip("^").partition(":")[0]].append(node.name)
    waiting = [node.name for node in nodes if node.op.startswith("Horovod")]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        yield name
        new = [user for user in users[name] if user not in seen]
        seen.update(new)
        waiting += new
