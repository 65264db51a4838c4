"""What is carried over a stop within an interval: the next reading has the bits of one without the stop."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hvdtrain.adapters.adapter_protocol import MeasureTotals, totals_of
from hvdtrain.adapters.torch.measure_sums import MeasureSums
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.interval_sums import IntervalSums, NormTotals
from hvdtrain.algorithms.loss_scale import GradientNorms, ScaledUpdate
from hvdtrain.checkpoints.format import Position
from hvdtrain.engine.sums_in_order import interval_of, rows_of

NUMBERS = st.floats(2**-13, 2**13, width=32)
STEPS = st.lists(NUMBERS, min_size=1, max_size=40)
CUTS = st.sets(st.integers(1, 40), max_size=4)
TOTALS = st.tuples(st.floats(allow_nan=False), st.floats(0, 1e6))


def through_a_checkpoint(interval: IntervalSums) -> IntervalSums:
    manifest = json.loads(json.dumps(Position(3, 30, interval=interval).to_json()))
    read = Position.from_json(manifest).interval
    assert read is not None
    return read


@given(steps=STEPS, cuts=CUTS)
def test_norms_of_an_interval_are_the_same_wherever_it_was_cut(steps: list[float], cuts: set[int]) -> None:
    whole, cut = GradientNorms(torch.maximum), GradientNorms(torch.maximum)
    for number, norm in enumerate(steps):
        if number in cuts:
            totals = cut.read()
            cut.begin(through_a_checkpoint(IntervalSums({}, totals)).norms)
        whole.add(torch.tensor(norm))
        cut.add(torch.tensor(norm))
    assert cut.read() == whole.read()
    assert cut.read() is None  # `begin` counts for one reading


def test_a_norm_that_is_not_a_number_stays_the_peak() -> None:
    for before, now in [(1.0, math.nan), (math.nan, 1.0)]:
        norms = GradientNorms(torch.maximum)
        norms.begin(NormTotals(1.0, before, 1))
        norms.add(torch.tensor(now))
        read = norms.read()
        assert read is not None
        assert math.isnan(read.peak)


@pytest.mark.parametrize("asked", [True, False])
def test_norms_go_on_where_they_are_still_asked_for(asked: bool) -> None:
    update = ScaledUpdate(Clipping(None, asked), None, max)
    update.continue_norms(NormTotals(1.0, 1.0, 1))
    assert (update.norms.read() is not None) == asked


@given(steps=STEPS, cuts=CUTS, rows=st.integers(1, 5))
@example(steps=[1.0] * 40, cuts={7, 23}, rows=3)
def test_sums_of_an_interval_are_the_same_wherever_it_was_cut(steps: list[float], cuts: set[int], rows: int) -> None:
    """Of numbers that float64 does not add exactly."""
    whole, cut = MeasureSums(together=1), MeasureSums(together=1)
    for number, loss in enumerate(steps):
        if number in cuts:
            read = rows_of([cut.read()], ["loss"])
            cut.begin(totals_of(through_a_checkpoint(interval_of(read, ["loss"], None)), 0))
        for sums in (whole, cut):
            sums.add({"loss": torch.arange(1, rows + 1).double() * loss / 3}, None, rows)
    assert cut.read() == whole.read()
    assert cut.read() == MeasureTotals({}, {})


@given(
    workers=st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(TOTALS, min_size=n, max_size=n), max_size=3)),
    norms=st.none() | st.builds(NormTotals, NUMBERS, NUMBERS, st.integers(1, 100)),
)
def test_each_virtual_worker_gets_its_own(workers: list[list[tuple[float, float]]], norms: NormTotals | None) -> None:
    names = [f"measure {number}" for number in range(len(workers))]
    interval = IntervalSums(dict(zip(names, workers, strict=True)), norms)
    assert through_a_checkpoint(interval) == interval
    if workers:
        of_workers = [totals_of(interval, worker) for worker in range(len(workers[0]))]
        assert interval_of(np.asarray(rows_of(of_workers, names)), names, norms) == interval


def test_a_checkpoint_of_an_early_version_carries_none() -> None:
    known = {name: value for name, value in Position(3, 30).to_json().items() if name != "interval"}
    assert Position.from_json(known) == Position(3, 30)
