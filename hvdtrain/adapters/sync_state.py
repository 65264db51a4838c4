"""What the gradient syncs of both frameworks have in common: their state, and how gradients are cut into buckets.

A gradient sync reduces the gradients of all ranks in every update, or averages their weights now and then. A comm hook
(PyTorch DDP's word) says what is sent for each bucket of gradients.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from data_sharding import LoadedBatch
from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.named_arrays import State

T = TypeVar("T")

LARGE_BYTES = 2**20
"""On CPUs a gradient of this size or more can be a bucket by itself: a copy of it takes as long as a good part of its
message, and a message of its own costs little beside its bytes."""


class HookState:
    """The half of a framework's comm hook that knows no framework. Here: nothing is carried on.

    Args: `loss_multiplier`: the loss must be multiplied by this, so that the reduced gradients are right.

    Attributes:
        reduces_in_place: a gradient that is a bucket by itself is reduced where the framework made it, without a copy.
        takes_own_means: each rank is to bring the mean over its own samples, however many these are.
    """

    reduces_in_place = False
    takes_own_means = False

    def __init__(self, loss_multiplier: float = 1.0) -> None:
        self.loss_multiplier = loss_multiplier

    def large_bytes(self, on_gpu: bool) -> float:
        """From which size on a gradient is a bucket by itself. GPUs copy almost at once, and prefer few messages."""
        return LARGE_BYTES if self.reduces_in_place and not on_gpu else math.inf

    def rank_local_state(self) -> State:
        """Float arrays that differ between ranks, whose mean over ranks may replace each of them (see `Adapter`)."""
        return {}

    def load_rank_local_state(self, arrays: State) -> None:
        """Put back what `rank_local_state` returned, averaged."""

    def state(self) -> State:
        """What a resumed run needs, equal on all ranks after `load_rank_local_state`; names begin with "exchange/"."""
        return {}

    def load_state(self, state: State) -> None:
        """Put back what `state` returned, at this world size or another."""


class SyncState:
    """The half of a framework's `GradientSync` that knows no framework: its state is its comm hook's."""

    def __init__(self, hook: HookState | None = None) -> None:
        hook = hook or HookState()
        self.loss_multiplier, self._takes_own_means = hook.loss_multiplier, hook.takes_own_means
        self.rank_local_state, self.load_rank_local_state = hook.rank_local_state, hook.load_rank_local_state
        self.state, self.load_state = hook.state, hook.load_state

    def weighed(self, batch: LoadedBatch) -> LoadedBatch:
        """This rank's part of a step, with the weight for which `loss_multiplier` is right."""
        if not self._takes_own_means:
            return batch
        return batch._replace(global_weight=self.loss_multiplier * float(batch.weights.sum()))

    def buckets(self, cap: int) -> tuple[int, ...]:  # noqa: ARG002
        """How many gradients each bucket holds where `cap` bytes are the largest; () where nothing can be chosen."""
        return ()

    def set_bucket_cap(self, cap: int) -> None:
        """Cut the gradients into buckets of at most `cap` bytes. Between steps."""

    def after_update(self, step: int) -> None:
        """Update `step` (from 0) has changed the weights. Called between steps; may be collective."""

    def average_weights(self) -> None:
        """Make weights equal that each rank has updated with gradients of its own. Collective."""


class PeriodicAverage(SyncState):
    """That half for local SGD: when weights are averaged.

    Args: `average`: averages the weights over ranks. Collective.
    """

    def __init__(self, chosen: ChosenSync, average: Callable[[], object]) -> None:
        super().__init__(HookState(chosen.loss_multiplier))
        self._sync_every, self._average = chosen.sync_every, average
        self._weights_differ = False

    def after_update(self, step: int) -> None:
        self._weights_differ = True
        if (step + 1) % self._sync_every == 0:
            self.average_weights()

    def average_weights(self) -> None:
        """Average, unless nothing was updated since the last time, which is the same on all ranks."""
        if self._weights_differ:
            self._average()
        self._weights_differ = False


def in_buckets(
    items: Iterable[T], kind: Callable[[T], Hashable], nbytes: Callable[[T], int], limit: int, large: float = math.inf
) -> list[list[T]]:
    """Items in their order, cut into buckets of one kind and at most `limit` bytes each, or of one larger item.

    Args:
        kind: of an item, for example its dtype.
        large: an item of so many bytes is a bucket by itself, and others are put together around it.
    """
    buckets: list[list[T]] = []
    filling: dict[Hashable, tuple[list[T], int]] = {}
    for item in items:
        if nbytes(item) >= large:
            buckets.append([item])
            continue
        bucket, size = filling.get(kind(item), ([], limit + 1))
        if size + nbytes(item) > limit:
            bucket, size = [], 0
            buckets.append(bucket)
        bucket.append(item)
        filling[kind(item)] = bucket, size + nbytes(item)
    return buckets


def part_of(numbers: int, rank: int, size: int) -> tuple[int, int]:
    """The first number that is a rank's, and the one behind its last: as Horovod's reducescatter divides them."""
    least, longer = divmod(numbers, size)
    start = rank * least + min(rank, longer)
    return start, start + least + (rank < longer)


def pieces_of(lengths: Sequence[int], rank: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of arrays that are a rank's part of a bucket.

    Args: `lengths`: numbers of each array, which follow each other in the bucket.

    Yields:
        Which array, its first number that is in the part, and the one behind the last.
    """
    begin, (first, last) = 0, part_of(sum(lengths), rank, size)
    for index, length in enumerate(lengths):
        start, end = max(first - begin, 0), min(last - begin, length)
        if start < end:
            yield index, start, end
        begin += length
