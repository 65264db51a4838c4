"""Decoded batches of one rank from its pipe, read ahead in the background, in the shape of `ShardLoader`'s."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Final, Self

from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decode
from data_sharding.loading.prefetch import OrderedPrefetch
from data_sharding.loading.shard_loader import LoadedBatch
from data_sharding.pipe.batches import BatchShape, PipeBatches, RawBatch
from data_sharding.pipe.pipe_reader import PipePass
from data_sharding.pipe.steps import PipeSteps

GRACE_S: Final = 20.0
"""The pipe's own deadline, whose message says more, comes first."""


class PipeLoader:
    """Iterator over one rank's batches of one epoch whose record counts are known; a context manager.

    Slots past a rank's last record have weight 0 and repeat it. When that record has been taken the stream must end, or
    the loader raises. `global_weight` comes from all ranks' counts, so no collective is needed.

    Args:
        one: the open pass; closed with this loader, and then, as everywhere in pipe mode, the epoch is over.
        steps: counts of all ranks.
        decode: turns k records into arrays of k rows, in the background thread.
        rank: whose batches.
        seed: of the draws that `decode` is given for augmentation; None: no draws.
        start_step: first step to deliver. A pipe cannot be entered in the middle: what comes before is read and
            discarded.
        prefetch: batches ready or in the making ahead of the consumer.
        timeout_s: longest wait for one batch, in seconds, beside what the pipe itself may take for its first bytes.
    """

    def __init__(
        self,
        one: PipePass,
        steps: PipeSteps,
        decode: Decode,
        *,
        rank: int,
        seed: int | None = None,
        start_step: int = 0,
        prefetch: int = 2,
        timeout_s: float = 300.0,
    ) -> None:
        self._pass, self._steps = one, steps
        shape = BatchShape(decode, steps.slots(rank), seed, steps.first_id(rank))
        batches = PipeBatches(one, shape, steps.records[rank], start_step)
        self._prefetch = prefetch_in_order(batches, start_step, steps.steps, prefetch, timeout_s)
        self._next, self._ended = start_step, False
        weakref.finalize(self, self._prefetch.cancel)

    def __iter__(self) -> Self:
        if self._ended:
            raise read_to_its_end()
        return self

    def __next__(self) -> LoadedBatch:
        """The next batch; `ids` count the records of all ranks' streams, rank by rank, in the order of arrival.

        Raises:
            LoaderTimeoutError, CorruptRecordError, ChangedDataError, PlanError: as `PipePass.read`; and whatever
                `decode` raised.
        """
        self._prefetch.start()
        try:
            raw = self._prefetch.take()
        except StopIteration:
            self._ended = True
            raise
        step, self._next = self._next, self._next + 1
        return raw.loaded(step, self._steps.global_weight(step))

    def abandon(self) -> None:
        """As `ShardLoader.abandon`. A pipe itself is never waited for at its close."""
        self._prefetch.abandon()

    def close(self) -> None:
        """Close the pass (early, if not at its end) and end the background threads. May be called twice."""
        self._prefetch.cancel()
        self._pass.close()
        self._prefetch.close()

    def __enter__(self) -> Self:
        self._prefetch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_to_its_end() -> PlanError:
    """The error for a second pass over a loader of one epoch, which would yield nothing."""
    return PlanError("The epoch has been read to its end.", "A pipe cannot be read again.", "make another loader.")


def prefetch_in_order(
    batches: PipeBatches, start: int, stop: int, depth: int, timeout_s: float
) -> OrderedPrefetch[RawBatch]:
    """One thread: a stream is read in order."""
    return OrderedPrefetch(batches, start, stop, depth=depth, threads=1, timeout_s=timeout_s + GRACE_S)
