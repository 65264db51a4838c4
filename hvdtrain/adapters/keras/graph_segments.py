"""Where a model that is a graph of layers can be cut, and where it should be, to keep the fewest bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

_BOUNDS: Final = 32  # sizes of the largest segment that are tried


@dataclass(frozen=True)
class Cut:
    """A place through which one tensor only leads.

    Attributes:
        tensor: the KerasTensor.
        nbytes: of one sample of it.
        before: bytes of one sample of all activations up to and with it.
        nodes: layers and operations up to it.
    """

    tensor: Any
    nbytes: int
    before: int
    nodes: int


def possible_cuts(model: Any) -> list[Cut]:
    """All of a functional model's, in the order of its graph, the outputs last (whose `tensor` is all of them)."""
    nodes = [n for depth in sorted(model._nodes_by_depth, reverse=True) for n in model._nodes_by_depth[depth]]
    nodes = [node for node in nodes if node.operation is not None and not node.is_input]
    uses = {id(tensor): place for place, node in enumerate(nodes) for tensor in node.input_tensors}
    uses |= {id(tensor): len(nodes) for tensor in model.outputs}
    sizes = list(accumulate(sum(_nbytes(tensor) for tensor in node.outputs) for node in nodes))
    alive = {id(tensor): tensor for tensor in model.inputs}
    cuts = []
    for place, node in enumerate(nodes[:-1]):
        alive |= {id(tensor): tensor for tensor in node.outputs}
        alive = {key: tensor for key, tensor in alive.items() if uses.get(key, -1) > place}
        if len(alive) == 1:
            (tensor,) = alive.values()
            cuts.append(Cut(tensor, _nbytes(tensor), sizes[place], place + 1))
    return [*cuts, Cut(model.outputs, 0, sizes[-1], len(nodes))]


def best_cuts(cuts: Sequence[Cut]) -> list[Cut]:
    """Those for which the bytes of the cuts and of the largest segment (there while it is repeated) are fewest.

    The last cut, the outputs, is always one. Chen et al. 2016 (arXiv:1604.06174) choose equal segments; layers' sizes
    differ too much for that. For each bound on a segment's bytes the cheapest cuts are a shortest path.
    """
    total = cuts[-1].before
    plans = [_cheapest(cuts, total * bound / _BOUNDS) for bound in range(1, _BOUNDS + 1)]
    return min((plan for plan in plans if plan is not None), key=_kept_bytes)


def _kept_bytes(plan: Sequence[Cut]) -> int:
    return sum(cut.nbytes for cut in plan) + max(_segments(plan))


def _segments(plan: Sequence[Cut]) -> list[int]:
    """Bytes inside each."""
    starts = [0, *(cut.before for cut in plan[:-1])]
    return [cut.before - start for cut, start in zip(plan, starts, strict=True)]


def _cheapest(cuts: Sequence[Cut], bound: float) -> list[Cut] | None:
    """The cuts with the fewest bytes between which at most `bound` bytes lie; None: there are none."""
    costs, previous = [0.0], [-1]  # of ending a segment at the start, at cut 0, at cut 1, …
    starts = [0, *(cut.before for cut in cuts)]
    for cut in cuts:
        found = [(costs[i], i) for i in range(len(costs)) if cut.before - starts[i] <= bound]
        cost, place = min(found, default=(math.inf, 0))
        costs.append(cost + cut.nbytes)
        previous.append(place)
    if math.isinf(costs[-1]):
        return None
    plan, place = [], len(cuts)
    while place > 0:
        plan.append(cuts[place - 1])
        place = previous[place]
    return plan[::-1]


def _nbytes(tensor: Any) -> int:
    """Of one sample; what is not known counts as 1."""
    values: int = math.prod(size or 1 for size in tensor.shape[1:])
    return values * _ITEM_BYTES.get(tensor.dtype, 4)


_ITEM_BYTES: Final = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
