"""A sum of V terms in one order, whoever has which of them: along a fixed binary tree, low bits first.

Term 2i is added to term 2i + 1, then pairs to pairs, and so on; where there is no right half, the left one is the sum.
Sums of floating-point numbers depend on their order, so only then has a sum the same bits on any number of workers. A
worker that has several consecutive terms adds up the subtrees that lie within them, and sends these.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TreeSum(Generic[T]):
    """Adds terms that come from the first to the last; it holds about 2 · log₂(V) sums at most.

    Args:
        count: V, terms of the whole sum.
        add: returns the sum of a left and a right part, perhaps in the memory of the left one.

    Attributes:
        parts: sums of consecutive terms, as [first, end) and the sum: whole subtrees, which only other terms can join.
    """

    def __init__(self, count: int, add: Callable[[T, T], T]) -> None:
        self._count, self._add = count, add
        self.parts: list[tuple[range, T]] = []

    def push(self, terms: range, value: T) -> None:
        """Add a term, or a subtree of consecutive ones, which follow those that are there."""
        self.parts.append((terms, value))
        while len(self.parts) > 1 and self._are_halves(self.parts[-2][0], self.parts[-1][0]):
            (right_terms, right), (left_terms, left) = self.parts.pop(), self.parts.pop()
            self.parts.append((range(left_terms.start, right_terms.stop), self._add(left, right)))

    def _are_halves(self, left: range, right: range) -> bool:
        """Whether they are the two halves of a subtree. The right one may be cut short by the end of all terms."""
        size = len(left)
        is_left_half = not size & (size - 1) and not left.start % (2 * size)
        return is_left_half and right.stop == min(left.start + 2 * size, self._count)


def subtrees(terms: range, count: int) -> list[range]:
    """Whole subtrees of which consecutive terms consist, of `count` terms: what a worker sends that has these terms."""
    tree: TreeSum[None] = TreeSum(count, lambda _left, _right: None)
    for term in terms:
        tree.push(range(term, term + 1), None)
    return [part for part, _ in tree.parts]


def sum_of_subtrees(parts: Iterable[tuple[range, T]], count: int, add: Callable[[T, T], T]) -> T:
    """The whole sum, given all of its subtrees from the first term to the last."""
    tree = TreeSum(count, add)
    for terms, value in parts:
        tree.push(terms, value)
    ((_, total),) = tree.parts
    return total


def is_one_after_the_other(parts: Sequence[range], count: int) -> bool:
    """Whether the whole sum is ((first + second) + third) and so on, given all of its subtrees in their order."""

    def joined(left: Any, right: Any) -> Any:
        return left, right

    return bool(sum_of_subtrees(zip(parts, parts, strict=True), count, joined) == reduce(joined, parts))
