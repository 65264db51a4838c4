"""Readings are sums over counts of all ranks, and ranks that miscount are found out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter, Sums
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.engine.events import ReducedMetrics
from hvdtrain.engine.meter import Meter, rank_times
from hvdtrain.errors import DivergenceError
from hvdtrain.rank_summary import RankSummary
from hvdtrain.slowness.causes import NOTHING, Pressure
from hvdtrain.topology import Topology


class Adder:
    """The part of an `Adapter` that a meter needs: adds up one measure of its batches' real samples."""

    stage: int | None = None
    counts = True

    def __init__(self, allreduce_seconds: float = 0.0) -> None:
        self._total = 0.0
        self._seconds = allreduce_seconds

    def eval_step(self, batch: LoadedBatch) -> None:
        self._total += float((batch.features["value"] * batch.weights).sum())

    def read_sums(self) -> Sums:
        sums, self._total = Sums({"loss": self._total, "a": 1.0}, self._seconds), 0.0
        return sums


def meter_of(adder: Adder, comm: Communicator) -> Meter:
    adapter: Any = adder
    checked: Adapter = adapter
    return Meter(checked, comm)


def batch_of(values: list[float], weights: list[float], global_weight: float) -> LoadedBatch:
    features = {"value": np.array(values)}
    return LoadedBatch(0, np.arange(len(values)), np.array(weights, np.float32), features, global_weight)


def read_alone(batches: list[LoadedBatch]) -> ReducedMetrics:
    adder = Adder()
    meter = meter_of(adder, SerialCommunicator(Topology.single()))
    for batch in batches:
        adder.eval_step(batch)
        meter.count(batch)
    return meter.reduce("training")


def test_a_mean_over_samples_not_of_batch_means() -> None:
    reading = read_alone([batch_of([1, 1, 1], [1, 1, 1], 3), batch_of([5, 9], [1, 0], 1)])
    assert reading.values["loss"] == (3 + 5) / 4
    assert reading.samples == 4


@pytest.mark.parametrize(("own", "mean"), [((1.5, 1.5), 1.5), ((1.0, 3.0), 2.0), ((None, None), None)])
def test_the_norm_of_gradients_is_the_mean_over_ranks_and_its_peak_the_largest(own: Any, mean: float | None) -> None:
    def work(comm: Communicator) -> ReducedMetrics:
        adder: Any = Adder()
        meter = meter_of(adder, comm)
        batch = batch_of([1.0], [1.0], 2.0)
        adder.eval_step(batch)
        meter.count(batch)
        sums = adder.read_sums()
        norm = own[comm.topology.rank]
        adder.read_sums = lambda: replace(sums, grad_norm=norm, grad_norm_peak=norm and 2 * norm)
        return meter.reduce("training")

    readings = all_well(run_on_ranks(2, work))
    assert [reading.grad_norm for reading in readings] == [mean, mean]
    assert [reading.grad_norm_peak for reading in readings] == [mean and 2 * max(own)] * 2


@pytest.mark.parametrize(("own", "gathered"), [((5, 7), (5, 7)), ((5, None), ()), ((None, None), ())])
def test_memory_is_told_of_each_rank(own: Any, gathered: Any) -> None:
    def work(comm: Communicator) -> ReducedMetrics:
        adder: Any = Adder()
        meter = meter_of(adder, comm)
        meter.count(batch_of([1.0], [1.0], 2.0))
        memory = own[comm.topology.rank]
        adder.read_sums = lambda: Sums({"loss": 0.0}, 0.0, device_memory=memory, device_use=memory and memory / 10)
        return meter.reduce("training")

    for reading in all_well(run_on_ranks(2, work)):
        assert reading.device_memory == gathered
        assert reading.device_use == tuple(value / 10 for value in gathered)
        assert isinstance(reading.memory, tuple)
        assert len(reading.memory) == 2
        assert min(reading.memory) > 2**20  # this test's process


@given(
    parts=st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), min_size=1, max_size=4),
    masked=st.integers(0, 4),
)
@settings(max_examples=30)
def test_the_mean_is_over_all_ranks_samples(parts: list[list[float]], masked: int) -> None:
    """Each rank has one list; on the last rank the last `masked` samples do not count."""
    masked = min(masked, len(parts[-1]) - (len(parts) == 1))
    weights = [[1.0] * len(part) for part in parts]
    weights[-1][len(weights[-1]) - masked :] = [0.0] * masked
    real = [v for part, own in zip(parts, weights, strict=True) for v, w in zip(part, own, strict=True) if w]

    def work(comm: ThreadCommunicator) -> ReducedMetrics:
        adder, rank = Adder(allreduce_seconds=comm.topology.rank), comm.topology.rank
        meter = meter_of(adder, comm)
        batch = batch_of(parts[rank], weights[rank], float(len(real)))
        adder.eval_step(batch)
        meter.count(batch)
        return meter.reduce("training")

    readings = all_well(run_on_ranks(len(parts), work))
    assert all(reading == readings[0] for reading in readings)
    assert readings[0].samples == len(real)
    assert readings[0].values["loss"] == pytest.approx(np.mean(real), rel=1e-9, abs=1e-9)
    assert [seconds.allreduce for seconds in readings[0].rank_seconds] == [float(rank) for rank in range(len(parts))]


@pytest.mark.parametrize("own", [[1.0, 1.0], [0.0, 1.0]])
def test_a_rank_that_counts_other_samples_than_the_plan_is_found_by_all(own: list[float]) -> None:
    def work(comm: ThreadCommunicator) -> ReducedMetrics:
        adder = Adder()
        meter = meter_of(adder, comm)
        weights = own if comm.topology.rank == 1 else [1.0]
        batch = batch_of([1.0] * len(weights), weights, 4.0)
        adder.eval_step(batch)
        meter.count(batch)
        return meter.reduce("validation")

    counted = 2 + sum(own)
    if counted == 4:
        all_well(run_on_ranks(3, work))
        return
    for error in run_on_ranks(3, work):
        assert isinstance(error, DivergenceError)
        assert error.joint
        assert error.fact == f"The ranks together measured {counted:.0f} samples in validation, where the plan has 4."


@pytest.mark.parametrize("names", [("r0", "r1"), ("r0", ""), ("", "r1")], ids=str)
def test_measures_that_ranks_name_differently_are_refused_with_the_names(names: tuple[str, str]) -> None:
    """By all ranks; else the numbers of one measure would be added to those of another one."""

    def work(comm: ThreadCommunicator) -> ReducedMetrics:
        rank = comm.topology.rank
        adder: Any = Adder()
        meter = meter_of(adder, comm)
        meter.count(batch_of([1.0], [1.0], 3.0))
        name = names[min(rank, 1)]
        adder.read_sums = lambda: Sums({"loss": 1.0, **({name: 5.0} if name else {})}, 0.0)
        return meter.reduce("validation")

    first, others = (f"'loss', {name!r}" if name else "'loss'" for name in names)
    for error in run_on_ranks(3, work):
        assert isinstance(error, DivergenceError)
        assert error.joint
        assert error.fact == f"The task's measure() names {first} on rank 0, and {others} on rank 1, 2."


def test_a_measure_that_some_samples_lack_is_the_mean_over_those_that_have_it() -> None:
    def work(comm: ThreadCommunicator) -> ReducedMetrics:
        rank = comm.topology.rank
        adder: Any = Adder()
        meter = meter_of(adder, comm)
        meter.count(batch_of([1.0] * 4, [1.0] * 4, 8.0))
        adder.read_sums = lambda: Sums({"loss": 4.0, "part": 6.0}, 0.0, samples={"loss": 4.0, "part": float(2 * rank)})
        return meter.reduce("training")

    for reading in all_well(run_on_ranks(2, work)):
        assert reading.values == {"loss": 1.0, "part": 6.0}


def test_reading_resets() -> None:
    adder = Adder()
    meter = meter_of(adder, SerialCommunicator(Topology.single()))
    for value in (1.0, 3.0):
        batch = batch_of([value], [1], 1)
        adder.eval_step(batch)
        meter.count(batch)
        reading = meter.reduce("training")
        assert (reading.values["loss"], reading.samples) == (value, 1)


def test_time_is_split_and_a_checkpoint_taken_out() -> None:
    adder = Adder(allreduce_seconds=0.25)
    meter = meter_of(adder, SerialCommunicator(Topology.single()))
    batches = [batch_of([1.0], [1], 1)] * 3
    assert list(meter.waits(batches)) == batches
    for batch in batches:
        meter.count(batch)
    meter.watch.add("checkpoint", 100.0)
    seconds = meter.reduce("training").rank_seconds[0]
    assert (seconds.checkpoint, seconds.allreduce, seconds.compute) == (100.0, 0.25, 0.0)
    assert 0 <= seconds.data < 10
    meter.watch.add("checkpoint", 7.0)
    meter.start()
    meter.count(batches[0])
    again = meter.reduce("training").rank_seconds[0]
    assert again.checkpoint == 7.0
    assert again.compute == 0.0  # less than the 0.25 s of waiting for gradients that the adapter states
    meter.count(batches[0])
    assert meter.reduce("training").rank_seconds[0].checkpoint == 0.0


def test_waiting_counts_what_the_source_takes_and_not_what_the_user_of_the_batches_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def slow() -> Iterator[LoadedBatch]:
        for _ in range(2):
            now[0] += 1
            yield batch_of([1.0], [1], 1)
        now[0] += 4  # for example the end of a stream

    meter = meter_of(Adder(), SerialCommunicator(Topology.single()))
    for batch in meter.waits(slow()):
        now[0] += 10
        meter.count(batch)
    seconds = meter.reduce("training").rank_seconds[0]
    assert (seconds.data, seconds.compute) == (6.0, 20.0)


def test_the_parts_and_what_keeps_each_rank_from_its_work_reach_all_ranks() -> None:
    """In the order of ranks, and beside the sums."""

    def work(comm: Communicator) -> list[ReducedMetrics]:
        rank = comm.topology.rank
        adder: Any = Adder()
        pressures = iter([Pressure(wall=2.0 + rank, throttled=rank), NOTHING])
        gauge: Any = SimpleNamespace(read=lambda: next(pressures))
        meter = Meter(adder, comm, gauge)
        told = []
        for _ in range(2):
            batch = batch_of([1.0], [1.0], 2.0)
            adder.eval_step(batch)
            meter.count(batch)
            sums = Sums({"loss": 1.0}, 0.0, parts={"forward": 1.0 + rank, "allreduce_hidden": 0.5})
            adder.read_sums = lambda sums=sums: sums
            told.append(meter.reduce("training"))
        return told

    ranks = all_well(run_on_ranks(2, work))
    assert ranks[0] == ranks[1]
    first, second = ranks[0]
    assert [(s.forward, s.backward, s.allreduce_hidden) for s in first.rank_seconds] == [
        (1.0, 0.0, 0.5),
        (2.0, 0.0, 0.5),
    ]
    assert first.rank_pressure == (Pressure(wall=2.0), Pressure(wall=3.0, throttled=1.0))
    assert second.rank_pressure == ()
    assert first.values == {"loss": 1.0}
    assert [times.pressure for times in rank_times(second)] == [NOTHING, NOTHING]
    assert [times.pressure.wall for times in rank_times(first)] == [2.0, 3.0]


def test_ranks_are_summarized_where_that_is_asked_for() -> None:
    def work(comm: Communicator) -> tuple[ReducedMetrics, float]:
        adder: Any = Adder(allreduce_seconds=0.25 * comm.topology.rank)
        meter = Meter(adder, comm, summary_hosts=["a", "a", "b"])
        batch = batch_of([1.0], [1.0], 3.0)
        adder.eval_step(batch)
        meter.count(batch)
        meter.watch.add("data", 2.0 if comm.topology.rank == 1 else 0.5)
        reading = meter.reduce("training")
        return reading, meter.own_times(reading).data

    readings = all_well(run_on_ranks(3, work))
    for rank, (reading, data) in enumerate(readings):
        assert reading.rank_seconds == ()
        assert data == (2.0 if rank == 1 else 0.5)
        assert reading.summary is not None
        assert reading.summary.own.data == (2.0 if rank == 1 else 0.5)
        waited = reading.summary.parts["data"]
        assert (waited.count, waited.min, waited.max) == (3, 0.5, 2.0)
        assert waited.median == pytest.approx(0.5, rel=0.03)
        assert (waited.largest[0].rank, waited.largest[0].host) == (1, "a")
        assert reading.summary.parts["allreduce"].max == 0.5
        assert isinstance(reading.memory, RankSummary)
        assert reading.memory.count == 3
