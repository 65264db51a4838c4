"""Reduced metrics and the parts of the time, read every few steps so that no step waits for the device."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter, Sums
from hvdtrain.adapters.measure_names import names_checksum, require_same_names
from hvdtrain.algorithms.interval_sums import IntervalSums
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.rank_reduction import reduce_ranks
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.memory import resident_bytes
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.engine.summarized_reading import NAMED, columns_of, metrics_of, summary_of
from hvdtrain.engine.sums_in_order import interval_of, rows_of, sum_in_order
from hvdtrain.errors import DivergenceError
from hvdtrain.measured import BESIDE, INSIDE, METRICS, Metric, Seconds
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


class _OfRanks(NamedTuple):
    """What all ranks have measured together. The same on all ranks, except for this rank's own seconds."""

    counted: float  # samples
    masked: float  # samples that were left out as damaged
    measures: list[float]  # sums of each measure, then the samples of each
    slowest: float  # the longest interval of a rank, in seconds
    not_finite: Callable[[], tuple[int, ...]]  # the ranks whose loss is not finite
    about: Mapping[str, Any]  # fields of `ReducedMetrics`


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
        self._pressure = NOTHING
        self.start()

    def start(self, before: IntervalSums | None = None) -> None:
        """Begin an interval now. Args: `before`: what virtual workers have measured that its means are to be over,
        too."""
        self._read: Sums | None = None
        if before is not None:
            self._adapter.continue_sums(before)
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

    def unfinished(self) -> IntervalSums | None:
        """Right after `reduce`: what the virtual workers have measured, from which `start` goes on as if there had been
        no reading. Collective. None without virtual workers."""
        if self._read is None or not self._read.by_worker:
            return None
        names, norms = sorted(self._read.values), self._read.norms
        rows = self._comm.allgather(rows_of(self._read.by_worker, names), "hvdtrain.meter.interval")
        return interval_of(rows, names, norms)

    def reduce(self, what: str) -> ReducedMetrics:
        """Reduce and reset. Collective; `what` is part of the operation's name. Raises DivergenceError: the ranks
        together measured more or fewer samples than the plan says, or they name their measures differently."""
        sums = self._adapter.read_sums()
        names, known = sorted(sums.values), self._known(sums)
        facts, operation = self._facts(sums, known, names), f"hvdtrain.meter.{what.replace(' ', '.')}"
        measures = [sums.values[name] for name in names]
        measures += [sums.samples.get(name, facts["weight"]) for name in names]
        of_ranks = (self._listed if self._hosts is None else self._summarized)(facts, names, measures, operation)
        expected, self._saved = self._expected, 0.0
        self.start()
        self._read = sums
        counted, masked = of_ranks.counted, of_ranks.masked
        if counted + masked != expected:
            raise DivergenceError(
                f"The ranks together measured {counted:.0f} samples in {what}, where the plan has {expected:.0f}.",
                "The mean over them would be wrong.",
                "check that the task's decode() returns exactly one row a record.",
            ).on_all_ranks()
        totals = self._in_order(sums, names, operation) if sums.by_worker else of_ranks.measures
        values = _means(names, totals, counted)
        return ReducedMetrics(
            values=values,
            samples=int(counted),
            masked=int(masked),
            skipped=sums.skipped,
            samples_per_second=counted / of_ranks.slowest if of_ranks.slowest > 0 else 0.0,
            not_finite=() if math.isfinite(values["loss"]) else of_ranks.not_finite(),
            **of_ranks.about,
        )

    def _in_order(self, sums: Sums, names: list[str], operation: str) -> list[float]:
        """`_OfRanks.measures`, added up over virtual workers in one order. Collective."""
        rows = rows_of(sums.by_worker, names)
        of_all = sum_in_order(self._comm, rows, f"{operation}.virtual_workers")
        return [*of_all[::2].tolist(), *of_all[1::2].tolist()]

    def own_times(self, reading: ReducedMetrics) -> RankTimes:
        """Of this rank, as `ManyStragglers` takes them. Args: `reading`: the last one, with summaries of ranks."""
        if reading.summary is None:
            raise ValueError("this reading has all ranks' times")
        own = reading.summary.own
        return RankTimes(own.data, own.compute, own.allreduce, self._pressure)

    def _listed(self, facts: Mapping[str, float], names: list[str], measures: list[float], operation: str) -> _OfRanks:
        """From every rank's row. Rows differ in length where ranks have other measures, so they are sent flat."""
        row = [*(facts[name] for name in _ROW), *measures]
        joined = self._comm.allgather(np.array(row, np.float64), operation)
        rows = _same_measures(joined, self._comm.topology.size)
        if rows is None:
            self._refuse_names(names, operation)
        totals = rows.sum(axis=0).tolist()
        ranks = [dict(zip(_ROW, row, strict=False)) for row in rows.tolist()]
        about = {m.name: _reduced(m, rows[:, _AT[m.name]], facts[m.name]) for m in _REDUCED}
        return _OfRanks(
            counted=totals[_AT["weight"]],
            masked=totals[_AT["masked"]],
            measures=totals[len(_ROW) :],
            slowest=float(rows[:, _AT["elapsed"]].max()),
            not_finite=lambda: _ranks_not_finite(rows, names),
            about={"rank_seconds": tuple(map(_seconds, ranks)), "rank_pressure": _pressures(ranks), **about},
        )

    def _summarized(
        self, facts: Mapping[str, float], names: list[str], measures: list[float], operation: str
    ) -> _OfRanks:
        """From reductions, which cost the same for any number of ranks."""
        own = _seconds(facts)
        columns = columns_of(own, facts)
        reduced = reduce_ranks(
            self._comm,
            list(columns.values()),
            operation,
            named=[place for place, name in enumerate(columns) if name in NAMED],
            totals=[facts["weight"], facts["masked"], *measures],
            same=[facts[name] for name in _MEASURES],
            hosts=self._hosts or (),
        )
        if not reduced.equal:
            self._refuse_names(names, operation)
        counted, masked, *of_measures = reduced.totals.tolist()
        of_column = dict(zip(columns, reduced.summaries, strict=True))
        return _OfRanks(
            counted=counted,
            masked=masked,
            measures=of_measures,
            slowest=of_column["elapsed"].max,
            not_finite=lambda: self._not_finite(measures[names.index("loss")], operation),
            about={
                "rank_seconds": (),
                "summary": summary_of(own, of_column),
                **metrics_of(facts, of_column, self._comm.topology.size),
            },
        )

    def _not_finite(self, loss: float, operation: str) -> tuple[int, ...]:
        """Ranks whose loss is not finite. Collective; called where that of all ranks together is not."""
        losses = self._comm.allgather(np.array([loss], np.float64), f"{operation}.not_finite")
        return tuple(np.flatnonzero(~np.isfinite(losses)).tolist())

    def _refuse_names(self, names: list[str], operation: str) -> Never:
        require_same_names(gather_json(self._comm, names, f"{operation}.names"))
        raise AssertionError("ranks differ by the names of measures only")

    def _known(self, sums: Sums) -> dict[str, float | None]:
        """This rank's numbers for the built-in metrics; None where one is not known."""
        here = {"memory": resident_bytes()}
        return here | {m.name: getattr(sums, m.name) for m in _REDUCED if m.name not in here}

    def _facts(self, sums: Sums, known: Mapping[str, float | None], names: list[str]) -> dict[str, float]:
        """This rank's row, by the names in `_ROW`."""
        saved = self.watch.take("checkpoint")
        elapsed = time.perf_counter() - self._begin - saved
        weight = float(np.concatenate(self._weights).sum(dtype=np.float64)) if self._weights else 0.0
        self._pressure = NOTHING if self._gauge is None else self._gauge.read()
        return {
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
            **self._pressure._asdict(),
        }


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


def _reduced(metric: Metric, ranks: NDArray[np.float64], here: float) -> Any:
    """What the event says of a metric. Args: `here`: this rank's number, NaN where it has none."""
    if metric.of == "update":
        if math.isnan(here):
            return None
        # A mean of equal numbers may differ from them in the last bits.
        has_mean = metric.reduced == "mean" and ranks.min() != ranks.max()
        return float(ranks.mean() if has_mean else ranks.max())
    if np.isnan(ranks).any():
        return ()
    return tuple((ranks.astype(np.int64) if metric.kind == "bytes" else ranks).tolist())


def _ranks_not_finite(rows: NDArray[np.float64], names: list[str]) -> tuple[int, ...]:
    losses = rows[:, len(_ROW) + names.index("loss")]
    return tuple(np.flatnonzero(~np.isfinite(losses)).tolist())


def _seconds(rank: Mapping[str, float]) -> Seconds:
    compute = max(0.0, rank["elapsed"] - rank["data"] - rank["allreduce"])
    parts = {part: rank[part] for part in ("data", "allreduce", "checkpoint", *_PARTS)}
    return Seconds(compute=compute, **parts)


def _pressures(ranks: Sequence[Mapping[str, float]]) -> tuple[Pressure, ...]:
    if not any(rank["wall"] for rank in ranks):
        return ()
    return tuple(Pressure(*(rank[name] for name in COLUMNS)) for rank in ranks)
