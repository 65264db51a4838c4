"""How long steps take: every step once, on all ranks alike, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.numpy_training import Data, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.algorithms import quantile_sketch
from hvdtrain.algorithms.quantile_sketch import Quantiles, QuantileSketch
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.step_times import StepTimes
from hvdtrain.topology import Topology


def adapter_of(*forward: float) -> Any:
    def take_part_times() -> Mapping[str, QuantileSketch]:
        sketch = QuantileSketch()
        sketch.add(forward)
        return {"forward": sketch} if forward else {}

    return SimpleNamespace(take_part_times=take_part_times)


def test_a_step_is_from_its_wait_to_its_end_and_a_call_of_several_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(quantile_sketch, "FOLDED", 3)
    times = StepTimes(adapter_of(), SerialCommunicator(Topology.single()))
    for steps in (1, 4, 2):
        for _ in range(steps):
            times.waited(now[0], now[0] + 1.0)
            now[0] += 1.0
        now[0] += 3.0 * steps
        times.ended(steps)
        assert len(times._steps._rows) < 3
        now[0] += 100.0  # a checkpoint, a callback
    (told,) = times.summaries()
    assert set(told) == {"step", "data"}
    assert (told["step"].count, told["step"].max, told["data"].max) == (7, 4.0, 1.0)
    assert told["step"].p50 == pytest.approx(4.0, rel=0.03)


def test_every_rank_learns_of_all() -> None:
    def work(comm: ThreadCommunicator) -> Any:
        rank = comm.topology.rank
        times = StepTimes(adapter_of(*[1.0 + rank] * (5 + rank)), comm)
        return times.summaries()

    ranks = all_well(run_on_ranks(3, work))
    assert ranks[0] == ranks[1] == ranks[2]
    assert [(rank["forward"].count, rank["forward"].max) for rank in ranks[0]] == [(5, 1.0), (6, 2.0), (7, 3.0)]
    assert all(set(rank) == {"forward"} for rank in ranks[0])


def test_a_training_tells_them(data: Data, tmp_path: Path) -> None:
    run = train(Setting(data, tmp_path), SerialCommunicator(Topology.single()), RunLimits(2), None, None)
    (told,) = run.outcome.step_times
    assert isinstance(told["step"], Quantiles)
    assert told["step"].count == 6
    assert 0 < told["data"].max <= told["step"].max
