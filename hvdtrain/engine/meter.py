"""Reduced metrics and the parts of the time, read every few steps so that no step waits for the device."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter, Sums
from hvdtrain.adapters.measure_names import names_checksum, require_same_names
from hvdtrain.algorithms.rank_columns import summarize, summarized_seconds
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.memory import resident_bytes
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.errors import DivergenceError
from hvdtrain.measured import BESIDE, INSIDE, METRICS, Metric, Seconds, SummarizedSeconds
from hvdtrain.slowness.causes import COLUMNS, NOTHING, Pressure
from hvdtrain.slowness.gauge import Gauge
from hvdtrain.slowness.stragglers import RankTimes
from hvdtrain.stopwatch import Stopwatch

_PARTS: Final = (*INSIDE, *BESIDE)
_REDUCED: Final = tuple(metric for metric in METRICS if metric.reduced)
_MEASURES: Final = ("names", "measures")
_ROW: Final = (
    *("weight", "masked"),
    *_MEASURES,
    *("elapsed", "data", "allreduce", "checkpoint"),
    *_PARTS,
    *(metric.name for metric in _REDUCED),
    *COLUMNS,
)
"""What is in a rank's row before its sums, one of each measure, and the samples of each of these. A metric that is not
known is NaN."""

_AT: Final = {name: place for place, name in enumerate(_ROW)}


class Meter:
    """Counts between readings. Means are sums over counts in float64, never means of means.

    Args:
        gauge: knows what keeps this rank from its work; None: nobody asks.
        summary_hosts: the hosts of all ranks, where ranks are summarized, or (); None: all ranks are listed.
    """

    def __init__(
        self,
        adapter: Adapter,
        comm: Communicator,
        gauge: Gauge | None = None,
        summary_hosts: Sequence[str] | None = None,
    ) -> None:
        self._adapter, self._comm, self._gauge, self._hosts = adapter, comm, gauge, summary_hosts
        self.watch = Stopwatch()
        """For spans "data" (waiting for the loader), and "checkpoint" and "validation", which belong to no interval."""
        self.step_times = StepTimes(adapter, comm)
        self._saved = 0.0
        self.start()

    def start(self) -> None:
        """Begin an interval now."""
        self._begin = time.perf_counter()
        self._expected = self._masked = 0.0
        self._weights: list[NDArray[np.float32]] = []
        self.watch.take("data")
        self._saved += self.watch.take("checkpoint")  # before the interval; the next reading has it

    def waits(self, batches: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
        """The same batches; waiting for each of them, and for their end, is a step's wait for data."""
        iterator, clock, times = iter(batches), time.perf_counter, self.step_times
        while True:
            begin = clock()
            batch = next(iterator, None)
            end = clock()
            self.watch.add("data", end - begin)
            if batch is None:
                return
            times.waited(begin, end)
            yield batch

    def count(self, batch: LoadedBatch) -> None:
        """Add a batch that the adapter has measured."""
        if self._adapter.counts:
            self._weights.append(batch.weights)
            self._masked += len(batch.damaged)
        self._expected += batch.global_weight

    def reduce(self, what: str) -> ReducedMetrics:
        """Reduce and reset. Collective; `what` is part of the operation's name. Raises DivergenceError: the ranks
        together measured more or fewer samples than the plan says, or they name their measures differently."""
        sums = self._adapter.read_sums()
        names, known = sorted(sums.values), self._known(sums)
        rows = self._rows(self._row(sums, known, names), names, f"hvdtrain.meter.{what.replace(' ', '.')}")
        expected, self._saved = self._expected, 0.0
        self.start()
        totals = rows.sum(axis=0).tolist()
        counted, masked = totals[_AT["weight"]], totals[_AT["masked"]]
        if counted + masked != expected:
            raise DivergenceError(
                f"The ranks together measured {counted:.0f} samples in {what}, where the plan has {expected:.0f}.",
                "The mean over them would be wrong.",
                "check that the task's decode() returns exactly one row a record.",
            ).on_all_ranks()
        values = _means(names, totals[len(_ROW) :], counted)
        slowest = float(rows[:, _AT["elapsed"]].max())
        summary = None if self._hosts is None else _summary(rows, self._comm.topology.rank, self._hosts)
        ranks = [dict(zip(_ROW, row, strict=False)) for row in rows.tolist()] if summary is None else []
        self._rows_read = rows
        return ReducedMetrics(
            values=values,
            samples=int(counted),
            masked=int(masked),
            skipped=sums.skipped,
            samples_per_second=counted / slowest if slowest > 0 else 0.0,
            rank_seconds=tuple(map(_seconds, ranks)),
            summary=summary,
            rank_pressure=_pressures(ranks),
            not_finite=() if math.isfinite(values["loss"]) else _ranks_not_finite(rows, names),
            **{m.name: _reduced(m, rows[:, _AT[m.name]], known[m.name], self._hosts) for m in _REDUCED},
        )

    def rank_times(self, reading: ReducedMetrics) -> list[RankTimes]:
        """Of each rank since the reading before, as `Stragglers` takes them. Args: `reading`: the last one."""
        if reading.summary is None:
            return rank_times(reading)
        ranks = [dict(zip(_ROW, row, strict=False)) for row in self._rows_read.tolist()]
        seconds, pressures = map(_seconds, ranks), _pressures(ranks) or (NOTHING,) * len(ranks)
        return [
            RankTimes(s.data, s.compute, s.allreduce, of_rank) for s, of_rank in zip(seconds, pressures, strict=True)
        ]

    def _rows(self, row: list[float], names: list[str], operation: str) -> NDArray[np.float64]:
        """Every rank's row. Rows are of different lengths where ranks have other measures, so they are sent flat."""
        joined = self._comm.allgather(np.array(row, np.float64), operation)
        rows = _same_measures(joined, self._comm.topology.size)
        if rows is None:
            require_same_names(gather_json(self._comm, names, f"{operation}.names"))
            raise AssertionError("rows differ by the names of measures only")
        return rows

    def _known(self, sums: Sums) -> dict[str, float | None]:
        """This rank's numbers for the built-in metrics; None where one is not known."""
        here = {"memory": resident_bytes()}
        return here | {m.name: getattr(sums, m.name) for m in _REDUCED if m.name not in here}

    def _row(self, sums: Sums, known: Mapping[str, float | None], names: list[str]) -> list[float]:
        saved = self.watch.take("checkpoint")
        elapsed = time.perf_counter() - self._begin - saved
        weight = float(np.concatenate(self._weights).sum(dtype=np.float64)) if self._weights else 0.0
        pressure = NOTHING if self._gauge is None else self._gauge.read()
        facts = {
            "weight": weight,
            "masked": self._masked,
            "names": names_checksum(names),
            "measures": len(names),
            "elapsed": elapsed,
            "data": self.watch.take("data"),
            "allreduce": sums.allreduce_seconds,
            "checkpoint": self._saved + saved,
            **{part: sums.parts.get(part, 0.0) for part in _PARTS},
            **{name: math.nan if value is None else value for name, value in known.items()},
            **pressure._asdict(),
        }
        return [
            *(facts[name] for name in _ROW),
            *(sums.values[name] for name in names),
            *(sums.samples.get(name, weight) for name in names),
        ]


def _same_measures(joined: NDArray[np.float64], size: int) -> NDArray[np.float64] | None:
    """The rows, [size, ...]; None unless all have the same measures, which all ranks see alike.

    The first row begins at 0, so its number of measures is really that. If the width fits it, the second row begins
    where it seems to, and so on.
    """
    width = len(_ROW) + 2 * int(joined[_AT["measures"]])
    if joined.size != size * width:
        return None
    rows = joined.reshape(size, width)
    of_measures = rows[:, [_AT[name] for name in _MEASURES]]
    return rows if (of_measures == of_measures[0]).all() else None


def _means(names: list[str], totals: list[float], counted: float) -> dict[str, float]:
    """Each measure's mean over the samples that have it; without those that no real sample has had. `totals`: the
    measures' sums, then their samples; `counted`: samples that were measured at all."""
    sums, samples = totals[: len(names)], totals[len(names) :]
    return {n: s / max(count, 1.0) for n, s, count in zip(names, sums, samples, strict=True) if count or not counted}


def rank_times(reading: ReducedMetrics) -> list[RankTimes]:
    """Of each rank, as `Stragglers` takes them."""
    pressures = reading.rank_pressure or (NOTHING,) * len(reading.rank_seconds)
    ranks = zip(reading.rank_seconds, pressures, strict=True)
    return [RankTimes(s.data, s.compute, s.allreduce, pressure) for s, pressure in ranks]


def _reduced(
    metric: Metric, ranks: NDArray[np.float64], here: float | None, summary_hosts: Sequence[str] | None
) -> Any:
    """What the event says of a metric. Args: `here`: this rank's number, None where it has none."""
    if metric.of == "update":
        return None if here is None else float(ranks.mean() if metric.reduced == "mean" else ranks.max())
    if summary_hosts is not None:
        summary = summarize(ranks, summary_hosts)
        return summary if summary.count else ()
    if np.isnan(ranks).any():
        return ()
    return tuple((ranks.astype(np.int64) if metric.kind == "bytes" else ranks).tolist())


def _ranks_not_finite(rows: NDArray[np.float64], names: list[str]) -> tuple[int, ...]:
    losses = rows[:, len(_ROW) + names.index("loss")]
    return tuple(np.flatnonzero(~np.isfinite(losses)).tolist())


def _summary(rows: NDArray[np.float64], own: int, hosts: Sequence[str]) -> SummarizedSeconds:
    """Of all ranks' rows, of which `own` is this rank's."""
    columns = {name: rows[:, _AT[name]] for name in ("data", "allreduce", "checkpoint", *_PARTS)}
    columns["compute"] = np.maximum(0.0, rows[:, _AT["elapsed"]] - columns["data"] - columns["allreduce"])
    seconds = Seconds(**{part: float(column[own]) for part, column in columns.items()})
    return summarized_seconds(columns, seconds, hosts)


def _seconds(rank: Mapping[str, float]) -> Seconds:
    compute = max(0.0, rank["elapsed"] - rank["data"] - rank["allreduce"])
    parts = {part: rank[part] for part in ("data", "allreduce", "checkpoint", *_PARTS)}
    return Seconds(compute=compute, **parts)


def _pressures(ranks: Sequence[Mapping[str, float]]) -> tuple[Pressure, ...]:
    if not any(rank["wall"] for rank in ranks):
        return ()
    return tuple(Pressure(*(rank[name] for name in COLUMNS)) for rank in ranks)
