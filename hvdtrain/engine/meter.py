"""Reduced measurements and the split of time, read once every few steps so that no step waits for the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import Adapter
from hvdtrain.comm.interface import Communicator
from hvdtrain.engine.events import Seconds
from hvdtrain.errors import DivergenceError

_OWN: Final = 7  # columns of a rank's row before its sums
T = TypeVar("T")


@dataclass(frozen=True)
class ReducedMetrics:
    """Equal on all ranks.

    Attributes:
        values: mean of each measure over all samples of all ranks since the last reading.
        samples: how many those are.
        masked: records that the plan has and that were left out because they are damaged.
        samples_per_second: over all ranks, by the slowest rank's clock.
        rank_seconds: the split of time of each rank.
        not_finite: ranks whose own sum of losses is NaN or infinite.
        skipped: updates left out because gradients overflowed.
        grad_norm: mean norm of the gradients before clipping, over updates and ranks; None where it is not known.
    """

    values: dict[str, float]
    samples: int
    masked: int
    samples_per_second: float
    rank_seconds: tuple[Seconds, ...]
    not_finite: tuple[int, ...] = ()
    skipped: int = 0
    grad_norm: float | None = None


class Meter:
    """Counts between readings. Means are sums over counts in float64, never means of means."""

    def __init__(self, adapter: Adapter, comm: Communicator) -> None:
        self._adapter = adapter
        self._comm = comm
        self._checkpoint = 0.0
        self.start()

    def start(self) -> None:
        """Begin an interval now."""
        self._begin = time.perf_counter()
        self._data = 0.0
        self._expected = 0.0
        self._own = 0.0
        self._masked = 0.0

    def opened(self, open_loader: Callable[[], T]) -> T:
        """What `open_loader` returns; its time counts as data time, for a pipe is waited for there."""
        begin = time.perf_counter()
        loader = open_loader()
        self._data += time.perf_counter() - begin
        return loader

    def timed(self, batches: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
        """The same batches; the time spent waiting for them counts as data time."""
        iterator = iter(batches)
        while True:
            begin = time.perf_counter()
            batch = next(iterator, None)
            self._data += time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def count(self, batch: LoadedBatch) -> None:
        """Add a batch that the adapter has measured."""
        self._own += float(batch.weights.sum())
        self._masked += len(batch.damaged)
        self._expected += batch.global_weight

    def exclude_checkpoint(self, seconds: float) -> None:
        """Take a save that has just ended out of the interval; it is told apart in the next reading."""
        self._begin += seconds
        self._checkpoint += seconds

    def reduce(self, what: str) -> ReducedMetrics:
        """Reduce and reset. Collective; `what` is part of the operation's name.

        Raises:
            DivergenceError: the ranks together measured more or fewer samples than the plan says.
        """
        sums = self._adapter.read_sums()
        elapsed = time.perf_counter() - self._begin
        names = sorted(sums.values)
        norm = math.nan if sums.grad_norm is None else sums.grad_norm
        own = [self._own, self._masked, elapsed, self._data, sums.allreduce_seconds, self._checkpoint, norm]
        row = np.array([[*own, *(sums.values[name] for name in names)]], np.float64)
        rows = self._comm.allgather(row, f"hvdtrain.meter.{what}")
        expected = self._expected
        self._checkpoint = 0.0
        self.start()
        counted, masked = float(rows[:, 0].sum()), float(rows[:, 1].sum())
        if counted + masked != expected:
            raise DivergenceError(
                f"The ranks together measured {counted:.0f} samples in {what}, where the plan has {expected:.0f}.",
                "The mean over them would be wrong.",
                "check that the task's decode() returns exactly one row a record.",
            ).on_all_ranks()
        totals = rows[:, _OWN:].sum(axis=0)
        slowest = float(rows[:, 2].max())
        return ReducedMetrics(
            {name: float(total) / max(counted, 1.0) for name, total in zip(names, totals, strict=True)},
            int(counted),
            int(masked),
            counted / slowest if slowest > 0 else 0.0,
            tuple(_split(r) for r in rows),
            _ranks_not_finite(rows, names),
            sums.skipped,
            None if sums.grad_norm is None else float(rows[:, 6].mean()),
        )


def _ranks_not_finite(rows: NDArray[np.float64], names: list[str]) -> tuple[int, ...]:
    losses = rows[:, _OWN + names.index("loss")]
    return tuple(np.flatnonzero(~np.isfinite(losses)).tolist())


def _split(row: NDArray[np.float64]) -> Seconds:
    elapsed, data, allreduce, checkpoint = (float(value) for value in row[2:6])
    return Seconds(data, max(0.0, elapsed - data - allreduce), allreduce, checkpoint)
