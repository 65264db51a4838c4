"""Reduced metrics and the parts of the time, read every few steps so that no step waits for the device."""

import math
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.interface import Adapter
from hvdtrain.comm.interface import Communicator
from hvdtrain.engine.events import ReducedMetrics, Seconds
from hvdtrain.engine.memory import ResidentMemory
from hvdtrain.errors import DivergenceError
from hvdtrain.stopwatch import Stopwatch

_OWN: Final = 11  # columns of a rank's row before its sums


class Meter:
    """Counts between readings. Means are sums over counts in float64, never means of means."""

    def __init__(self, adapter: Adapter, comm: Communicator) -> None:
        self._adapter, self._comm = adapter, comm
        self.watch = Stopwatch()
        """For spans "data" (waiting for the loader), and "checkpoint" and "validation", which belong to no interval."""
        self._saved = 0.0
        self._memory = ResidentMemory()
        self.start()

    def start(self) -> None:
        """Begin an interval now."""
        self._begin = time.perf_counter()
        self._expected = self._masked = 0.0
        self._weights: list[NDArray[np.float32]] = []
        self.watch.take("data")
        self._saved += self.watch.take("checkpoint")  # before the interval; the next reading tells it

    def count(self, batch: LoadedBatch) -> None:
        """Add a batch that the adapter has measured."""
        self._weights.append(batch.weights)
        self._masked += len(batch.damaged)
        self._expected += batch.global_weight

    def reduce(self, what: str) -> ReducedMetrics:
        """Reduce and reset. Collective; `what` is part of the operation's name.

        Raises:
            DivergenceError: the ranks together measured more or fewer samples than the plan says.
        """
        sums = self._adapter.read_sums()
        saved = self.watch.take("checkpoint")
        elapsed = time.perf_counter() - self._begin - saved
        names = sorted(sums.values)
        known = (sums.grad_norm, sums.grad_norm_peak, sums.device_memory, sums.device_use)
        own = [
            float(np.concatenate(self._weights).sum(dtype=np.float64)) if self._weights else 0.0,
            self._masked,
            elapsed,
            self.watch.take("data"),
            sums.allreduce_seconds,
            self._saved + saved,
            *(math.nan if value is None else value for value in known),
            self._memory.read(),
        ]
        row = np.array([[*own, *(sums.values[name] for name in names)]], np.float64)
        rows = self._comm.allgather(row, f"hvdtrain.meter.{what}")
        expected, self._saved = self._expected, 0.0
        self.start()
        totals = rows.sum(axis=0).tolist()
        counted, masked = totals[:2]
        if counted + masked != expected:
            raise DivergenceError(
                f"The ranks together measured {counted:.0f} samples in {what}, where the plan has {expected:.0f}.",
                "The mean over them would be wrong.",
                "check that the task's decode() returns exactly one row a record.",
            ).on_all_ranks()
        values = {name: total / max(counted, 1.0) for name, total in zip(names, totals[_OWN:], strict=True)}
        slowest = float(rows[:, 2].max())
        return ReducedMetrics(
            values=values,
            samples=int(counted),
            masked=int(masked),
            samples_per_second=counted / slowest if slowest > 0 else 0.0,
            rank_seconds=tuple(_split(row) for row in rows.tolist()),
            not_finite=() if math.isfinite(values["loss"]) else _ranks_not_finite(rows, names),
            skipped=sums.skipped,
            grad_norm=None if sums.grad_norm is None else float(rows[:, 6].mean()),
            grad_norm_peak=None if sums.grad_norm_peak is None else float(rows[:, 7].max()),
            memory=tuple(map(int, rows[:, 10].tolist())),
            device_memory=tuple(map(int, _of_all(rows[:, 8]))),
            device_use=tuple(_of_all(rows[:, 9])),
        )


def _of_all(column: NDArray[np.float64]) -> list[float]:
    """What each rank says, in the order of ranks; [] where one of them does not know."""
    return [] if np.isnan(column).any() else column.tolist()


def _ranks_not_finite(rows: NDArray[np.float64], names: list[str]) -> tuple[int, ...]:
    losses = rows[:, _OWN + names.index("loss")]
    return tuple(np.flatnonzero(~np.isfinite(losses)).tolist())


def _split(row: list[float]) -> Seconds:
    elapsed, data, allreduce, checkpoint = row[2:6]
    return Seconds(data, max(0.0, elapsed - data - allreduce), allreduce, checkpoint)
