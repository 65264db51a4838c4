"""Where a chain of layers is cut into stages: the slowest stage is as fast as possible, and every stage fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate


@dataclass(frozen=True)
class LinkCost:
    """What one link of the chain needs."""

    seconds: float  # of its forward and backward pass
    nbytes: int = 0  # of memory in training: weights, gradients, optimizer state
    is_trained: bool = True  # whether it has weights that are trained
    kept: float = 0  # bytes of activations of a micro batch between its two passes


def balanced_cuts(
    links: Sequence[LinkCost],
    stages: int,
    most_bytes: float = float("inf"),
    in_flight: Callable[[int], int] = lambda _: 1,
) -> tuple[int, ...] | None:
    """The number of the first link of each stage but the first one; None where no division fits.

    Args: `in_flight`: of how many micro batches a stage keeps the activations, by its number.

    Of all divisions into consecutive stages, each of which trains something and needs `most_bytes` at most, this is one
    whose slowest stage takes the least time; among those one whose stages are as equal as can be, so that equal links
    are dealt out equally.
    """
    seconds = [0.0, *accumulate(link.seconds for link in links)]
    nbytes = [0, *accumulate(link.nbytes for link in links)]
    kept = [0, *accumulate(link.kept for link in links)]
    trained = [0, *accumulate(int(link.is_trained) for link in links)]

    def is_stage(start: int, end: int, number: int) -> bool:
        needed = nbytes[end] - nbytes[start] + in_flight(number) * (kept[end] - kept[start])
        return trained[end] > trained[start] and needed <= most_bytes

    @cache
    def best(end: int, count: int) -> tuple[float, float, tuple[int, ...]] | None:
        """(slowest stage, sum of squares, cuts) of the links before `end` in `count` stages."""
        if count == 1:
            return (seconds[end], seconds[end] ** 2, ()) if is_stage(0, end, 0) else None
        candidates = []
        for start in range(count - 1, end):
            before = best(start, count - 1)
            if before is not None and is_stage(start, end, count - 1):
                taken = seconds[end] - seconds[start]
                candidates.append((max(before[0], taken), before[1] + taken**2, (*before[2], start)))
        return min(candidates, default=None)

    for end in range(1, len(links)):  # from the front, so that no recursion is deep
        for count in range(1, min(stages, end + 1)):
            best(end, count)
    division = best(len(links), stages) if links else None
    return None if division is None else division[2]
