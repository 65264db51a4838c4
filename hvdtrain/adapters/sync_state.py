"""What the gradient syncs of both frameworks have in common: their state, buckets, and the conditions of Adasum.

A gradient sync reduces the gradients of all ranks in every update, or averages their weights now and then. A comm hook
(PyTorch DDP's word) says what is sent for each bucket of gradients.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

T = TypeVar("T")

BUCKET_BYTES = 25 * 2**20
"""PyTorch DDP's default (Li et al. 2020, "PyTorch Distributed", section 4.2): large enough for the network, and small
enough for the first bucket's communication to start early."""


LARGE_BYTES = 2**20
"""On CPUs a gradient of this size or more can be a bucket by itself: a copy of it takes as long as a good part of its
message, and a message of its own costs little beside its bytes."""


def bucket_bytes(options: TrainingOptions) -> int:
    """The largest bucket of several gradients, in bytes: --bucket-cap-mb, which is in MiB as DDP's, or the default."""
    if options.gradient_sync == "horovod":
        return 1  # each gradient by itself
    return BUCKET_BYTES if options.bucket_cap_mb is None else max(1, int(options.bucket_cap_mb * 2**20))


class HookState:
    """The half of a framework's comm hook that knows no framework. Here: nothing is carried on.

    Args:
        loss_multiplier: the loss must be multiplied by this, so that the reduced gradients are right.

    Attributes:
        reduces_in_place: a gradient that is a bucket by itself is reduced where the framework made it, without a copy.
    """

    reduces_in_place = False

    def __init__(self, loss_multiplier: float = 1.0) -> None:
        self.loss_multiplier = loss_multiplier

    def large_bytes(self, on_gpu: bool) -> float:
        """From which size on a gradient is a bucket by itself. GPUs copy in no time, and prefer few messages."""
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
    """The half of a framework's `GradientSync` that knows no framework: its state is its comm hook's.

    Args:
        hook: None: nothing is carried on.
    """

    def __init__(self, hook: HookState | None = None) -> None:
        own = hook or HookState()
        self.loss_multiplier = own.loss_multiplier
        self.rank_local_state, self.load_rank_local_state = own.rank_local_state, own.load_rank_local_state
        self.state, self.load_state = own.state, own.load_state

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

    Args:
        sync_every: updates from one average to the next.
        loss_multiplier: see `HookState`.
        average: averages the weights over ranks. Collective.
    """

    def __init__(self, sync_every: int, loss_multiplier: float, average: Callable[[], object]) -> None:
        super().__init__(HookState(loss_multiplier))
        self._sync_every, self._average = sync_every, average
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
    items: Iterable[T],
    kind: Callable[[T], Hashable],
    nbytes: Callable[[T], int],
    limit: int,
    large: float = math.inf,
) -> list[list[T]]:
    """Items in their order, cut into buckets of one kind and at most `limit` bytes each, or of one larger item.

    Args:
        items: what is put into buckets, for example tensors.
        kind: of an item, for example its dtype.
        nbytes: of an item.
        limit: bytes of a bucket.
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


def require_adasum(hvd: Any, on_gpu: bool) -> None:
    """Raise `UsageError` where Horovod 0.28.1's Adasum would fail at the first update.

    It halves a vector between pairs of workers, so that their number must be a power of two; with NCCL, gradients are
    averaged within a node first, and the number of nodes must be one. Gloo has no Adasum.

    Args:
        hvd: horovod.torch or horovod.tensorflow, initialized.
        on_gpu: whether gradients are on a GPU.
    """
    if not hvd.mpi_enabled():
        raise UsageError(
            "--reduce-op adasum is given, and Horovod runs over Gloo.",
            "Horovod combines gradients by Adasum over MPI only.",
            "start the job with mpirun, or with horovodrun --mpi.",
        )
    by_node = on_gpu and hvd.nccl_built()
    count, what = (hvd.size() // hvd.local_size(), "nodes") if by_node else (hvd.size(), "workers")
    if count & (count - 1):
        raise UsageError(
            f"--reduce-op adasum is given for {count} {what}.",
            "Horovod combines gradients by Adasum in pairs, and pairs of pairs.",
            f"start 2, 4, 8 … {what}.",
        )
