"""Decoded batches of one rank, read ahead in the background."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.plan import ShardPlan, StepBatch
from data_sharding.prefetch import OrderedPrefetch
from data_sharding.reader import RecordReader

Decode = Callable[[Sequence[bytes]], dict[str, NDArray[Any]]]

# Positions of a rank that are planned together: enough to make the cost of a step's plan vanish beside its reading
# (170 µs a step one by one, a few together), few enough to delay no first batch.
_BLOCK_POSITIONS: Final = 4096


class LoadedBatch(NamedTuple):
    """One rank's part of one step, k records.

    Attributes:
        step: step of the epoch.
        ids: int64[k].
        weights: float32[k], 0 for masked slots.
        features: what `decode` made of the records; each array has k rows.
        global_weight: real records of the step over all ranks.
    """

    step: int
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    features: dict[str, NDArray[Any]]
    global_weight: float


class _BatchSource:
    """Reads and decodes one step; apart from the loader, so that threads do not keep an abandoned loader alive."""

    def __init__(self, plan: ShardPlan, reader: RecordReader, decode: Decode, rank: int, size: int) -> None:
        self._plan, self._reader, self._decode = plan, reader, decode
        self._who = f"epoch {plan.epoch} for rank {rank} of {size}"
        self._block_steps = max(1, _BLOCK_POSITIONS * size // plan.global_batch)
        # Two blocks, for threads on either side of a boundary.
        self._block = functools.lru_cache(maxsize=2)(
            functools.partial(_plan_block, plan, rank, size, self._block_steps)
        )

    def __call__(self, step: int) -> LoadedBatch:
        try:
            block, row = divmod(step, self._block_steps)
            ids, weights = (column[row] for column in self._block(block))
            features = self._decode(self._reader.read(ids))
            _check_rows(features, len(ids))
            return LoadedBatch(step, ids, weights, features, self._plan.global_weight(step))
        except Exception as error:
            error.add_note(f"while loading step {step} of {self._who}")
            raise


def _plan_block(plan: ShardPlan, rank: int, size: int, block_steps: int, block: int) -> StepBatch:
    first = block * block_steps
    return plan.shards(rank, size, range(first, min(first + block_steps, plan.steps)))


class ShardLoader:
    """Iterator over one rank's batches of a plan, in order, from `start_step` to the epoch's end; a context manager.

    Batches are read and decoded in background threads. An exception there is raised here, at its own step. The reader
    stays open: it is the caller's, and can serve the next epoch. A loader that is dropped unclosed ends its threads.

    Args:
        plan: the epoch.
        reader: over the catalog that the plan was made for.
        decode: turns k payloads into arrays of k rows; runs in the background threads, so in several at a time
            if `threads` > 1.
        rank, size: whose slice of each global batch to load.
        start_step: first step to load; `plan.steps` gives an empty loader.
        prefetch: batches that may be ready or in the making ahead of the consumer.
        threads: background threads.
        timeout_s: longest wait for one batch, in seconds.

    Raises:
        PlanError: an argument is out of range, or the plan was made for other data than the reader's.
    """

    def __init__(
        self,
        plan: ShardPlan,
        reader: RecordReader,
        decode: Decode,
        *,
        rank: int,
        size: int,
        start_step: int = 0,
        prefetch: int = 2,
        threads: int = 1,
        timeout_s: float = 300.0,
    ) -> None:
        _check_same_data(plan, reader)
        _check_at_least_one(prefetch=prefetch, threads=threads)
        plan.step_at(start_step * plan.global_batch)
        plan.shard(rank, size, 0)
        self._prefetch = OrderedPrefetch(
            _BatchSource(plan, reader, decode, rank, size),
            start_step,
            plan.steps,
            depth=prefetch,
            threads=threads,
            timeout_s=timeout_s,
        )
        weakref.finalize(self, self._prefetch.cancel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoadedBatch:
        """The next batch.

        Raises:
            LoaderTimeoutError: it was not ready within `timeout_s`.
            PlanError: the loader is closed.
            ShardingError: as `RecordReader.read`; and whatever `decode` raised.
        """
        self._prefetch.start()
        return self._prefetch.take()

    def close(self) -> None:
        """End the background threads. May be called twice.

        Raises:
            LoaderTimeoutError: a thread is still busy after `timeout_s`.
        """
        self._prefetch.close()

    def __enter__(self) -> Self:
        self._prefetch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # a thread that is stuck must not delay, nor hide, the error that is on its way
            self._prefetch.cancel()


def _check_rows(features: dict[str, NDArray[Any]], rows: int) -> None:
    for name, array in features.items():
        if np.shape(array)[:1] != (rows,):
            raise PlanError(
                f"The decode function returned shape {np.shape(array)} for {name!r} from {rows} records.",
                "The first dimension must be the records, or weights would fall on the wrong ones.",
                "return one row for each record.",
            )


def _check_same_data(plan: ShardPlan, reader: RecordReader) -> None:
    if (plan.num_records, plan.data_fingerprint) != (len(reader.catalog), reader.catalog.fingerprint):
        raise PlanError(
            f"The plan is for {plan.num_records} records, of other data than the reader's {len(reader.catalog)}.",
            "Record ids of one mean nothing in the other.",
            "make the plan with ShardPlan.for_catalog(reader.catalog, ...).",
        )


def _check_at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise PlanError(f"{name} is {count}.", "Loading needs at least one.", f"set {name} to 1 or more.")
