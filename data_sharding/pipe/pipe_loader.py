"""Decoded batches of one rank from its pipe, read ahead in the background, where all ranks' record counts are known."""

import sys
import weakref
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from data_sharding.checks import check_batch_fits, check_step
from data_sharding.errors import MissingDataError, PlanError
from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.decoding import Decode, decode_rows
from data_sharding.loading.prefetch import OrderedPrefetch
from data_sharding.loading.step_batches import LoadedBatch
from data_sharding.pipe.pipe_reader import PipePass
from data_sharding.sample_random import SampleRandom

_GRACE_S: Final = 20.0
"""The pipe's own deadline, whose message says more, comes first."""
_PASSED_TOGETHER: Final = 4096


@dataclass(frozen=True)
class PipeSteps:
    """Steps of an epoch whose ranks have unequal numbers of records; a pure function of its fields, equal on all ranks.

    Rank r of W fills k_r = (r+1)*G//W - r*G//W slots a step, as in `ShardPlan`. Where its n_r records have run out its
    slots have weight 0, so that every rank makes max over ranks of ceil(n_r / k_r) steps, no record counts twice, none
    is dropped, and the gradient of a step is the mean over the real records of all ranks.

    Raises PlanError.
    """

    records: tuple[int, ...]  # n_r of each rank
    global_batch: int  # G, slots of a step over all ranks

    def __post_init__(self) -> None:
        empty = [rank for rank, count in enumerate(self.records) if count < 1]
        if empty or not self.records:
            fact = f"Rank {empty[0] if empty else 0} has no record."
            conflict = "Even a masked slot needs a record that can be decoded."
            raise PlanError(fact, conflict, "use fewer workers, or write the data to more files.")
        check_batch_fits(self.global_batch, len(self.records))

    @property
    def num_records(self) -> int:
        """Records of an epoch, over all ranks."""
        return sum(self.records)

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same for all ranks."""
        return max(-(-count // self.slots(rank)) for rank, count in enumerate(self.records))

    def slots(self, rank: int) -> int:
        """k_r: slots of a rank in every step."""
        return slots(rank, len(self.records), self.global_batch)

    def count(self, rank: int, step: int) -> int:
        """Real records of a rank in a step; its other slots are masked. PlanError for a step outside the epoch."""
        check_step(step, self.steps)
        width = self.slots(rank)
        return min(width, max(0, self.records[rank] - step * width))

    def global_weight(self, step: int) -> float:
        """Real records of a step over all ranks; at least 1. Errors as `count`."""
        return float(sum(self.count(rank, step) for rank in range(len(self.records))))

    def first_id(self, rank: int) -> int:
        """Id of a rank's first record of an epoch; the next ones follow in the order of its stream."""
        return sum(self.records[:rank])


def slots(rank: int, size: int, global_batch: int) -> int:
    """Slots of a step for one rank of `size`: they differ by at most one between ranks."""
    return (rank + 1) * global_batch // size - rank * global_batch // size


@dataclass(frozen=True)
class BatchShape:
    """How a rank's stream is cut and decoded."""

    decode: Decode  # turns k records into arrays of k rows, in a background thread
    width: int  # rows of every batch
    seed: int | None = None  # of the draws that `decode` is given for augmentation; None: no draws
    first_id: int = 0  # of the stream's first record; the next ones follow in the order of arrival


class PipeBatches:
    """The batches of a pass, read ahead by one thread; after the pass has ended, batches without records.

    Weights are 1 for records and 0 for the slots after them. `global_weight` is 0: only others know it.

    Args:
        open_pass: closed with this.
        start_step, steps: batches to read over before the first, and where to stop.
        filler: what fills batches of a stream without any record; later, the last record read.
        prefetch: batches ready or in the making ahead of the consumer.
        timeout_s: longest wait for one batch, in seconds, beside what the pipe itself may take for its first bytes.
    """

    def __init__(
        self,
        open_pass: PipePass,
        shape: BatchShape,
        *,
        start_step: int = 0,
        steps: int = sys.maxsize,
        filler: bytes | None = None,
        prefetch: int,
        timeout_s: float,
    ) -> None:
        self._pass, self._shape, self._start_step = open_pass, shape, start_step
        self.filler, self._taken = filler, 0
        self._empty: LoadedBatch | None = None
        self.prefetch = OrderedPrefetch(
            self._make, start_step, steps, depth=prefetch, threads=1, timeout_s=timeout_s + _GRACE_S
        )

    def close(self) -> None:
        """Close the pass (early, if not at its end) and end the thread. May be called twice."""
        self.prefetch.cancel()
        self._pass.close()
        self.prefetch.close()

    def _make(self, step: int) -> LoadedBatch:
        try:
            if step == self._start_step and step:
                self._read_over(step * self._shape.width)
            return self._next(step)
        except Exception as error:
            error.add_note(f"while loading step {step} of {self._pass.name}")
            raise

    def _next(self, step: int) -> LoadedBatch:
        if self._empty is not None:
            return self._empty._replace(step=step)
        payloads = self._pass.read(self._shape.width)
        if payloads:
            self.filler = payloads[-1]
        batch = self._decoded(step, payloads)
        self._taken += len(payloads)
        if not payloads:  # so will be all that follow
            self._empty = batch
        return batch

    def _decoded(self, step: int, payloads: list[bytes]) -> LoadedBatch:
        """Rows past the last payload repeat the last record that came, id and all."""
        shape, count = self._shape, len(payloads)
        ids = shape.first_id + np.minimum(self._taken + np.arange(shape.width), max(self._taken + count - 1, 0))
        random = None if shape.seed is None else SampleRandom(shape.seed, self._pass.name.epoch, ids)
        if count < shape.width and self.filler is None:
            fact = f"{self._pass.name.path} ({self._pass.name}) delivered no record."
            conflict = "Even a masked slot needs a record that can be decoded."
            raise MissingDataError(fact, conflict, "use fewer workers, or write the data to more files.")
        filled = payloads + [self.filler or b""] * (shape.width - count)
        records = RecordBatch(filled, ids, None, np.ones(shape.width, np.bool_), random)

        def name(row: int) -> str:
            return f"record {ids[row] - shape.first_id} of {self._pass.name}"

        weights = (np.arange(shape.width) < count).astype(np.float32)
        return LoadedBatch(step, ids, weights, decode_rows(shape.decode, records, name), global_weight=0.0)

    def _read_over(self, count: int) -> None:
        while passed := self._pass.read(min(count - self._taken, _PASSED_TOGETHER)):
            self.filler = passed[-1]  # it may have to fill later batches
            self._taken += len(passed)


class OneEpoch:
    """An iterator over one epoch that cannot be begun again: a second pass would yield nothing."""

    _ended = False

    def __iter__(self) -> Self:
        if self._ended:
            raise PlanError(
                "The epoch has been read to its end.", "A pipe cannot be read again.", "make another loader."
            )
        return self


class PipeLoader(OneEpoch):
    """Iterator over one rank's batches of one epoch whose record counts are known; a context manager.

    Slots past a rank's last record have weight 0 and repeat it. When that record has been taken the stream must end, or
    the loader raises. `global_weight` comes from all ranks' counts, so no collective is needed. Arguments are as for
    `PipeBatches` and `BatchShape`; `rank` is this one among the counts of `steps`.
    """

    def __init__(
        self,
        open_pass: PipePass,
        steps: PipeSteps,
        decode: Decode,
        *,
        rank: int,
        seed: int | None = None,
        start_step: int = 0,
        prefetch: int = 2,
        timeout_s: float = 300.0,
    ) -> None:
        self._steps = steps
        if open_pass.expected_records not in (None, steps.records[rank]):
            fact = f"The pass was opened for {open_pass.expected_records:,} records."
            raise PlanError(fact, f"The plan has {steps.records[rank]:,}.", "open it without a number.")
        open_pass.expected_records = steps.records[rank]
        self._batches = PipeBatches(
            open_pass,
            BatchShape(decode, steps.slots(rank), seed, steps.first_id(rank)),
            start_step=start_step,
            steps=steps.steps,
            prefetch=prefetch,
            timeout_s=timeout_s,
        )
        self._prefetch = self._batches.prefetch
        weakref.finalize(self, self._prefetch.cancel)

    def __next__(self) -> LoadedBatch:
        """The next batch; `ids` count the records of all ranks' streams, rank by rank, in the order of arrival.

        Errors as `PipePass.read`; and whatever `decode` raised.
        """
        self._prefetch.start()
        try:
            batch = self._prefetch.take()
        except StopIteration:
            self._ended = True
            raise
        return batch._replace(global_weight=self._steps.global_weight(batch.step))

    def abandon(self) -> None:
        """As `ShardLoader.abandon`. A pipe itself is never waited for at its close."""
        self._prefetch.abandon()

    def close(self) -> None:
        """Close the pass (early, if not at its end) and end the background threads. May be called twice."""
        self._batches.close()

    def __enter__(self) -> Self:
        self._prefetch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
