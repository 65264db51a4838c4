"""Batches if the number of records is unknown: in every step the ranks exchange how many records each of them has.

A service that divides objects over hosts again in each epoch gives a rank an unpredictable number of records. A rank
that ran out alone would leave the others waiting in their next collective. So each step begins with an allgather of one
number; a rank without records takes part with slots of weight 0, and when none has any left, all open their next FIFO
together. Such a pass has no known length, so an epoch is a number of steps that the caller fixes. Passes follow each
other inside it, and what is left of one is the beginning of the next epoch: no record is dropped.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from data_sharding.errors import MissingDataError, PlanError
from data_sharding.loading.step_batches import LoadedBatch
from data_sharding.pipe.pipe_loader import BatchShape, OneEpoch, PipeBatches
from data_sharding.pipe.pipe_reader import PipePass

GatherCounts = Callable[[int], Sequence[int]]
"""From this rank's number of records in a step to all ranks' numbers; called once a step by every rank."""


class UnevenStream:
    """One rank's batches, pass after pass, for the life of a job. All ranks call `next` equally often.

    `open_pass` opens this rank's next FIFO; all ranks call it between the same two steps. The rest is as for
    `PipeBatches`.
    """

    def __init__(
        self,
        open_pass: Callable[[], PipePass],
        gather_counts: GatherCounts,
        shape: BatchShape,
        *,
        prefetch: int = 2,
        timeout_s: float = 300.0,
    ) -> None:
        self._open_pass, self._gather_counts, self._shape = open_pass, gather_counts, shape
        self._prefetch, self._timeout_s = prefetch, timeout_s
        self._batches: PipeBatches | None = None
        self._filler: bytes | None = None
        self.steps_taken = 0

    def next(self) -> LoadedBatch:
        """The next step's batch; `step` is its number since the stream's beginning. Errors as `PipePass.read`.

        Raises MissingDataError (a whole pass brought no rank a record, or this rank never had one).
        """
        for _ in range(2):  # the first try may find the end of a pass, which all ranks then leave together
            batch = self._next_of_rank()
            real = sum(self._gather_counts(int(np.count_nonzero(batch.weights))))
            if real:
                self.steps_taken += 1
                return batch._replace(step=self.steps_taken - 1, global_weight=float(real))
            self.close()
        fact = "A whole epoch of all channels brought no rank a record."
        raise MissingDataError(fact, "There is nothing to train on.", "look at the agent that feeds the pipes.")

    def close(self) -> None:
        """Close the open pass, early if need be; `next` would open another. May be called twice."""
        if self._batches is not None:
            self._batches.close()
            self._filler, self._batches = self._batches.filler, None

    def _next_of_rank(self) -> LoadedBatch:
        if self._batches is None:
            self._batches = PipeBatches(
                self._open_pass(), self._shape, filler=self._filler, prefetch=self._prefetch, timeout_s=self._timeout_s
            )
            self._batches.prefetch.start()
        return self._batches.prefetch.take()


class UnevenPipeLoader(OneEpoch, AbstractContextManager["UnevenPipeLoader"]):
    """Iterator over the batches of one epoch of fixed length, cut from an `UnevenStream`; a context manager.

    Args:
        stream: outlives this loader, since what is left of a pass belongs to the next epoch.
        steps: of an epoch.
        epoch, start_step: where to begin. Steps before that which were not taken yet are read and discarded, by all
            ranks alike.

    Raises PlanError.
    """

    def __init__(self, stream: UnevenStream, steps: int, epoch: int, start_step: int = 0) -> None:
        self._stream, self._step, self._steps = stream, start_step, steps
        target = epoch * steps + start_step
        if stream.steps_taken > target:
            fact = f"Step {start_step} of epoch {epoch} was asked for after {stream.steps_taken} steps were taken."
            raise PlanError(fact, "A pipe cannot be read again.", "start the job again.")
        while stream.steps_taken < target:
            stream.next()

    def __next__(self) -> LoadedBatch:
        """The next batch; errors as `UnevenStream.next`."""
        if self._step >= self._steps:
            self._ended = True
            raise StopIteration
        batch = self._stream.next()._replace(step=self._step)
        self._step += 1
        return batch

    def abandon(self) -> None:
        """As `ShardLoader.abandon`; does nothing, because the stream continues."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stream.close()
