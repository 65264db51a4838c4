"""Which updates are one call of the adapter: the same on all ranks, since it follows from the numbers of steps only."""

from collections.abc import Iterator
from itertools import islice

from data_sharding import LoadedBatch
from hvdtrain.engine.interface import RunLimits


def in_groups(
    batches: Iterator[LoadedBatch], step: int, end: int, limits: RunLimits
) -> Iterator[tuple[LoadedBatch, ...]]:
    """The batches of the updates from `step` to `end`, in groups of at most `limits.steps_per_call`.

    Nothing is due after an update of a group but its last. No batch is asked for before its group is.
    """
    if limits.steps_per_call == 1:
        return zip(islice(batches, end - step), strict=True)  # costs a step nothing
    return _groups(batches, step, end, limits)


def _groups(
    batches: Iterator[LoadedBatch], step: int, end: int, limits: RunLimits
) -> Iterator[tuple[LoadedBatch, ...]]:
    while group := tuple(islice(batches, _steps_together(step, end, limits))):
        yield group
        step += len(group)


def _steps_together(step: int, end: int, limits: RunLimits) -> int:
    last = min(step + limits.steps_per_call, end)
    return next((each for each in range(step + 1, last) if limits.logs_after(each)), last) - step
