"""Payloads of an epoch as decoded batches of one size; the last ones are filled up."""

import sys
from dataclasses import dataclass
from typing import Final

import numpy as np

from data_sharding.errors import MissingDataError
from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.decoding import Decode, decode_rows
from data_sharding.loading.prefetch import OrderedPrefetch
from data_sharding.loading.shard_loader import LoadedBatch
from data_sharding.pipe.pipe_reader import PipePass
from data_sharding.sample_random import SampleRandom

_GRACE_S: Final = 20.0
"""The pipe's own deadline, whose message says more, comes first."""


@dataclass(frozen=True)
class BatchShape:
    """How a rank's stream is cut and decoded.

    Attributes:
        decode: turns k records into arrays of k rows, in a background thread.
        width: rows of every batch.
        seed: of the draws that `decode` is given for augmentation; None: no draws.
        first_id: of the stream's first record; the next ones follow in the order of arrival.
    """

    decode: Decode
    width: int
    seed: int | None = None
    first_id: int = 0


class PipeBatches:
    """The batches of a pass, read ahead by one thread; after the pass has ended, batches without records.

    Weights are 1 for records and 0 for the slots after them. `global_weight` is 0: only others know it.

    Args:
        one: the open pass, closed with this.
        records: of the whole pass, after which it must end; None: whatever comes.
        start_step: batches to read over before the first.
        steps: where to stop.
        filler: what fills batches of a stream without any record; later, the last record read.
        prefetch: batches ready or in the making ahead of the consumer.
        timeout_s: longest wait for one batch, in seconds, beside what the pipe itself may take for its first bytes.
    """

    def __init__(
        self,
        one: PipePass,
        shape: BatchShape,
        records: int | None = None,
        *,
        start_step: int = 0,
        steps: int = sys.maxsize,
        filler: bytes | None = None,
        prefetch: int,
        timeout_s: float,
    ) -> None:
        self._pass, self._shape, self._records, self._start_step = one, shape, records, start_step
        self.filler = filler
        self._taken = 0
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
        payloads = self._read()
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
        filled = payloads + [self._last()] * (shape.width - count)
        records = RecordBatch(filled, ids, None, np.ones(shape.width, np.bool_), random)
        weights = (np.arange(shape.width) < count).astype(np.float32)
        features = decode_rows(
            shape.decode, records, lambda row: f"record {ids[row] - shape.first_id} of {self._pass.name}"
        )
        return LoadedBatch(step, ids, weights, features, global_weight=0.0)

    def _read(self) -> list[bytes]:
        if self._records is None:
            return self._pass.read(self._shape.width)
        wanted = min(self._shape.width, self._records - self._taken)
        payloads = self._pass.read(wanted) if wanted else []
        if wanted and self._taken + wanted == self._records:
            self._pass.require_end()
        return payloads

    def _read_over(self, count: int) -> None:
        """The last of them may have to fill later batches."""
        count = count if self._records is None else min(count, self._records)
        self._pass.discard(count - 1)
        self.filler = self._pass.read(1)[-1]
        self._taken = count
        if self._records == count:
            self._pass.require_end()

    def _last(self) -> bytes:
        if self.filler is None:
            raise MissingDataError(
                f"{self._pass.name.path} ({self._pass.name}) delivered no record.",
                "Even a masked slot needs a record that can be decoded.",
                "use fewer workers, or write the data to more files.",
            )
        return self.filler
